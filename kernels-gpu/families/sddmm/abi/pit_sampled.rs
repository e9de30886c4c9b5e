//! The module `pit_sampled`: `S[m,n] = X[m,k] * Y[n,k]`, only where another matrix of S's shape has 1 x 64 micro-tiles,
//! which are listed at run time (`detect`). It computes the gradient of a dynamic operand, and SDDMM on the m axis of
//! PIT (arXiv 2301.10936). For each panel of 64 columns of S, the panel's list gathers rows of X and scatters rows of
//! S.

use core::marker::PhantomData;

use crate::abi::{AtomInfo, LoaderInfo, MapWords, SMEM_TILE, Tile, Tma, Wgmma};

/// Columns of S in a panel: elements of a micro-tile.
pub const SAMPLED_WIDTH: usize = 64;
/// Rows of a tile of S: a range of a panel's list.
pub const SAMPLED_LISTED: usize = 128;
/// Threads that gather.
pub const SAMPLED_PRODUCER_THREADS: u32 = 128;

/// S is zero where `gate` is not positive.
pub const SAMPLED_GATE: u32 = 1;

/// Tile of `pit_sampled` and `pit_sampled_mma`: 128 listed rows of X by 64 rows of Y. Y is the first operand of the
/// products, since all of its 64 rows exist. `L` copies Y.
#[derive(Clone, Copy, Debug)]
pub struct PitSampled<A = Wgmma, L = Tma>(PhantomData<(A, L)>);

impl<A, L: LoaderInfo> PitSampled<A, L> {
    /// Offset of the rows of X in a stage, after those of Y.
    pub const X_AT: usize = SMEM_TILE;
    /// Bytes of a stage, 64 deep.
    pub const STAGE: usize = Self::X_AT + SAMPLED_LISTED * 128;
    /// Stages in flight.
    pub const STAGES: usize = match L::BY_ONE {
        true => 8,
        false => (L::SHARED - 2 * SMEM_TILE - 512) / Self::STAGE,
    };
    /// Offset of the output buffers, [`SMEM_TILE`] bytes for each warpgroup.
    pub const OUT: usize = Self::STAGES * Self::STAGE;
    /// Offset of the barriers: full and empty for each stage.
    pub const BARRIERS: usize = Self::OUT + 2 * SMEM_TILE;
}

impl<A: AtomInfo, L: LoaderInfo> Tile for PitSampled<A, L> {
    const THREADS: u32 = 256 + SAMPLED_PRODUCER_THREADS;
    const NEEDS: u32 = A::NEEDS | L::NEEDS;
    const STANDS_IN: bool = !A::ASYNCHRONOUS;
    const COLUMNS: u32 = SAMPLED_WIDTH as u32;
    const ITEMS: u32 = SAMPLED_LISTED as u32;
    const BURST: u32 = Self::STAGES as u32;
    const BLOCK: (u32, u32) = (1, SAMPLED_WIDTH as u32);
    const SHARED_BYTES: u32 = (Self::BARRIERS + Self::STAGES * 16) as u32;
    const ACCESS: u32 = 16;
}

const _: () = assert!(<PitSampled as Tile>::SHARED_BYTES <= 227 << 10);

/// Parameters of the `pit_sampled` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PitSampledParams {
    /// Y, in tiles of 64 columns x 64 rows.
    pub y_map: MapWords,
    /// Rows of S that each panel lists, `stride` words a panel.
    pub lists: u64,
    /// Number of rows that each panel lists.
    pub counts: u64,
    /// X, row-major.
    pub x: u64,
    /// S, row-major; written at the micro-tiles.
    pub s: u64,
    /// Gate of S's shape, or 0.
    pub gate: u64,
    /// Bytes from one row of X to the next.
    pub ldx_bytes: u32,
    /// Bytes from one row of S to the next.
    pub lds_bytes: u32,
    /// Bytes from one row of `gate` to the next.
    pub gate_bytes: u32,
    /// Columns of S, rows of Y.
    pub n: u32,
    /// Columns of X and Y.
    pub k: u32,
    /// Panels.
    pub panels: u32,
    /// Words of a list.
    pub stride: u32,
    /// `SAMPLED_*`.
    pub flags: u32,
    /// Zeros: the map requires 64-byte alignment.
    pub reserved: [u32; 2],
}

const _: () = assert!(size_of::<PitSampledParams>() == 208);
