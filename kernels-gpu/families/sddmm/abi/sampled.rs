//! The module `sampled` (SDDMM): products of dense matrices, only at the blocks of a pattern. A window is 128 rows of
//! the output by up to 256 gathered columns, fed by the tensor copy engine as in the module `wgmma`.

use core::marker::PhantomData;

use crate::abi::{AtomInfo, HALF, LoaderInfo, MapWords, PANEL_BYTES, SMEM_TILE};
use crate::abi::{STEPS, Strip, Tile, Tma, Wgmma};

/// Max chunks of 64 columns of a window.
pub const WINDOW_CHUNKS: usize = 4;

/// Parameters of a [`Sampled`]: constants, atom and loader.
pub trait WindowForm {
    /// Columns of a piece: 16, 32 or 64.
    const P: usize;
    /// Memory order of X and Y.
    const ORDER: u32;
    /// Atom.
    type A: AtomInfo;
    /// Loader.
    type L: LoaderInfo;
}

/// [`WindowForm`] as a type.
#[derive(Clone, Copy, Debug)]
pub struct WindowOf<const P: usize, const ORDER: u32, A = Wgmma, L = Tma>(PhantomData<(A, L)>);

impl<const P: usize, const ORDER: u32, A: AtomInfo, L: LoaderInfo> WindowForm
    for WindowOf<P, ORDER, A, L>
{
    const P: usize = P;
    const ORDER: u32 = ORDER;
    type A = A;
    type L = L;
}

/// Tile of the module `sampled`. The columns of a window, `CHUNKS` (2, or [`WINDOW_CHUNKS`]) times
/// 64, are gathered in pieces. Elements have 16 bits: a stage is 64 deep.
#[derive(Clone, Copy, Debug)]
pub struct Sampled<const CHUNKS: usize, F>(PhantomData<F>);

impl<const CHUNKS: usize, F: WindowForm> Sampled<CHUNKS, F> {
    /// Pieces of columns of a window.
    pub const PIECES: usize = CHUNKS * 64 / F::P;
    /// Bytes of a piece in a stage.
    pub const PIECE: usize = F::P * PANEL_BYTES;
    /// Bytes of a stage: two halves of X, the chunks of Y.
    pub const STAGE: usize = (2 + CHUNKS) * SMEM_TILE;
    /// Stages in flight.
    pub const STAGES: usize = match F::L::BY_ONE {
        true => 4,
        false => (F::L::SHARED - 2 * SMEM_TILE - 512) / Self::STAGE,
    };
    /// Offset of the output buffers, [`SMEM_TILE`] bytes for each warpgroup.
    pub const OUT: usize = Self::STAGES * Self::STAGE;
    /// Offset of the barriers, full and empty for each stage, and of two words for the split-K fix-up.
    pub const BARRIERS: usize = Self::OUT + 2 * SMEM_TILE;
}

impl<const CHUNKS: usize, F: WindowForm> Tile for Sampled<CHUNKS, F> {
    const THREADS: u32 = 384;
    const NEEDS: u32 = F::A::NEEDS | F::L::NEEDS;
    const STANDS_IN: bool = !F::A::ASYNCHRONOUS;
    const COLUMNS: u32 = 64 * CHUNKS as u32;
    const BURST: u32 = Self::STAGES as u32;
    const BLOCK: (u32, u32) = (16, F::P as u32);
    const ORDER: u32 = F::ORDER;
    const SHARED_BYTES: u32 = (Self::BARRIERS + Self::STAGES * 16 + 16) as u32;
    const ACCESS: u32 = 16;
}

/// Rows of the output that share one place (an index among the values of S): the rows of a warp.
pub const PLACE_ROWS: usize = 16;
/// Groups of [`PLACE_ROWS`] rows of a window.
pub const PLACE_GROUPS: usize = 2 * HALF / PLACE_ROWS;
/// Elements in a unit of a place.
pub const PLACE_ELEMENTS: usize = 16;
/// Place of a piece that is not in the pattern.
pub const NO_PLACE: u32 = u32::MAX;

/// Window of the output, or a part of it along k.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Window {
    /// First row, or [`NO_STRIP`](crate::abi::NO_STRIP).
    pub row: u32,
    /// Index of the table of places.
    pub window: u32,
    /// Bit `4 half + chunk`: set if these 64 rows and columns contain a place. From bit 8 on: the number of pieces.
    pub live: u32,
    /// First stage along k.
    pub stage: u32,
    /// Number of stages; 0 writes zeros.
    pub stages: u32,
    /// First slot of partial sums of this window.
    pub first: u32,
    /// Index of this part along k, and from bit 16 on the number of parts.
    pub parts: u32,
    /// Index of the pair of arrival counters of this window.
    pub counter: u32,
}

/// Parameters of the `sampled` kernels: `S[m,n] (= | +=) alpha * P[m,n] * X[m,k] * Y[n,k]` where S has a block. The
/// maps require 64-byte alignment, as in [`WgmmaParams`](crate::families::gemm::abi::WgmmaParams).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SampledParams {
    /// X.
    pub x_map: MapWords,
    /// Y.
    pub y_map: MapWords,
    /// [`Window`]s by rounds: the first of every thread block, then the second of every one, ...
    pub windows: u64,
    /// First column of each piece of each window, in the order of `windows`.
    pub columns: u64,
    /// For each table, group of 16 rows and piece: index of its first element among the values, in units of
    /// [`PLACE_ELEMENTS`], or [`NO_PLACE`].
    pub places: u64,
    /// The values of S.
    pub values: u64,
    /// The values of P.
    pub mask: u64,
    /// Partial sums: slots x halves x accumulators of a warpgroup.
    pub partial: u64,
    /// Arrival counters, two for each window that is cut, all zero between launches.
    pub counters: u64,
    /// Scalar factor of the product.
    pub alpha: f64,
    /// Rounds of the work list.
    pub rounds: u32,
    /// [`FLAG_ACCUMULATE`](crate::abi::FLAG_ACCUMULATE), [`FLAG_MASK_VALUES`](crate::abi::FLAG_MASK_VALUES).
    pub flags: u32,
    /// Bytes from one row of a block to the next.
    pub row_bytes: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Window>() == size_of::<Strip>());
const _: () = assert!(size_of::<SampledParams>() == 336);
const _: () = assert!(STEPS * 32 == PANEL_BYTES);
