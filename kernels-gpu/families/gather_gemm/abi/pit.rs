//! Module `pit`: `C[m,n] = A[m,k] * B[k,n]` with an A whose micro-tiles (columns of 128, 64 or 32 rows) were found and
//! packed at run time (`detect`). For each block of those rows, rows of B are gathered by its list (SRead of PIT, arXiv
//! 2301.10936, section 3.4).
//!
//! Kernels `pit_turned` have a transposed A: `C[m,n] = A[k,m] * B[k,n]`. Micro-tiles are pieces of 64 elements of a row
//! of A. They are gathered unpacked, together with the same row of B.
//!
//! Kernels `pit_right` have the sparse operand on the right. It computes the product of `pit_turned` with C stored as
//! `[n,m]`: `C[n,m] = (A[k,m])^T * B[k,n]` transposed. The A of the parameters is the right factor of the product, and
//! their B the transpose of the left factor.

use core::marker::PhantomData;

use crate::abi::{
    AtomInfo, C_COLUMNS, CpAsync, Divisor, LoaderInfo, MapWords, MmaQuarters, PANEL_BYTES, PLAIN,
    SMEM_TILE, Tile, Tma, Wgmma,
};

/// Max number of columns of C of a thread block.
pub const PIT_COLUMNS: usize = 256;

/// Producer threads.
pub const PIT_PRODUCER_THREADS: u32 = 128;

/// Parameters of a [`PitColumns`]: constants, atom and loader.
pub trait PitForm {
    /// Rows of a tile.
    const MT: usize;
    /// Whether A is gathered too.
    const TRANSPOSED: bool;
    /// [`C_COLUMNS`] if C is stored as `[n,m]`.
    const ORDER: u32;
    /// Atom.
    type A: AtomInfo;
    /// Loader of A, unless it is gathered.
    type L: LoaderInfo;
}

/// [`PitForm`] as a type.
#[derive(Clone, Copy, Debug)]
pub struct PitOf<
    const MT: usize,
    const TRANSPOSED: bool,
    const ORDER: u32 = PLAIN,
    A = Wgmma,
    L = Tma,
>(PhantomData<(A, L)>);

impl<const MT: usize, const TRANSPOSED: bool, const ORDER: u32, A: AtomInfo, L: LoaderInfo> PitForm
    for PitOf<MT, TRANSPOSED, ORDER, A, L>
{
    const MT: usize = MT;
    const TRANSPOSED: bool = TRANSPOSED;
    const ORDER: u32 = ORDER;
    type A = A;
    type L = L;
}

/// Tile of `pit`: [`PitForm::MT`] rows by up to 256 columns.
#[derive(Clone, Copy, Debug)]
pub struct PitColumns<F>(PhantomData<F>);

impl<F: PitForm> PitColumns<F> {
    /// Chunks of 64 columns. Without `setmaxnreg` a consumer thread has registers for 64 accumulators: with 128 rows a
    /// tile has half as many columns.
    pub const CHUNKS: usize =
        if F::MT == 128 && !F::A::ASYNCHRONOUS { PIT_COLUMNS / 128 } else { PIT_COLUMNS / 64 };
    /// Micro-tiles of a stage; fewer where a thread block has 99 KB of shared memory.
    pub const DEPTH: usize = if F::A::ASYNCHRONOUS { 64 } else { 32 };
    /// Bytes of A in a stage: the micro-tiles of its rows.
    pub const A_BYTES: usize = F::MT * Self::DEPTH * 2;
    /// Bytes of 64 rows of A, or of 64 columns of B, in a stage.
    pub const SLAB: usize = Self::DEPTH * PANEL_BYTES;
    /// Offset of B in a stage.
    pub const B_AT: usize = if Self::A_BYTES < Self::SLAB { Self::SLAB } else { Self::A_BYTES };
    /// Bytes of a stage.
    pub const STAGE: usize = Self::B_AT + Self::CHUNKS * Self::SLAB;
    /// Stages of the ring.
    pub const STAGES: usize = match (F::A::ASYNCHRONOUS, F::MT) {
        (true, 128) => 4,
        (true, _) => 5,
        (false, 128) => 5,
        (false, _) => 4,
    };
    /// Arrivals that fill a stage: every producer thread, and TMA if it copies A.
    pub const ARRIVALS: u32 = PIT_PRODUCER_THREADS + (F::L::BY_ONE && !F::TRANSPOSED) as u32;
    /// Offset of the output buffers, [`SMEM_TILE`] bytes for each warpgroup.
    pub const OUT: usize = Self::STAGES * Self::STAGE;
    /// Offset of the barriers: full and empty for each stage.
    pub const BARRIERS: usize = Self::OUT + 2 * SMEM_TILE;
    /// Bytes of a row of A's shared-memory tile, which holds up to 64 rows of A.
    pub const A_ROW: usize = if F::MT * 2 < PANEL_BYTES { F::MT * 2 } else { PANEL_BYTES };
}

impl<F: PitForm> Tile for PitColumns<F> {
    const THREADS: u32 = 256 + PIT_PRODUCER_THREADS;
    const NEEDS: u32 = F::A::NEEDS | F::L::NEEDS;
    const STANDS_IN: bool = !F::A::ASYNCHRONOUS;
    const COLUMNS: u32 = 64 * Self::CHUNKS as u32;
    const BURST: u32 = Self::STAGES as u32;
    const ORDER: u32 = F::ORDER;
    const BLOCK: (u32, u32) = if F::TRANSPOSED { (1, F::MT as u32) } else { (F::MT as u32, 1) };
    const SHARED_BYTES: u32 = (Self::BARRIERS + Self::STAGES * 16) as u32;
    const ACCESS: u32 = 16;
}

const _: () = assert!(PitColumns::<PitOf<128, false>>::SHARED_BYTES <= 227 << 10);
const _: () = assert!(PitColumns::<PitOf<64, true, C_COLUMNS>>::SHARED_BYTES <= 227 << 10);
// Max shared memory of a thread block on GPUs of compute capability 8.6, 8.9 and 12.0.
const _: () =
    assert!(PitColumns::<PitOf<128, false, PLAIN, MmaQuarters, CpAsync>>::SHARED_BYTES <= 99 << 10);
const _: () =
    assert!(PitColumns::<PitOf<64, false, PLAIN, MmaQuarters, CpAsync>>::SHARED_BYTES <= 99 << 10);
// Shared-memory tiles must begin at a multiple of the swizzle's period.
const _: () = assert!(
    PitColumns::<PitOf<32, false, PLAIN, MmaQuarters, CpAsync>>::STAGE.is_multiple_of(1024)
);

/// Parameters of the `pit` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PitParams {
    /// Map of A's packed values: a micro-tile a row, `stride` rows for each row block. Unused if A is transposed.
    pub a_map: MapWords,
    /// Rows of B of each row block, `stride` words.
    pub lists: u64,
    /// Number of micro-tiles of each row block.
    pub counts: u64,
    /// B, row-major.
    pub b: u64,
    /// C, row-major.
    pub c: u64,
    /// Bias vector, or 0.
    pub bias: u64,
    /// Scalar factor of the product.
    pub alpha: f64,
    /// Bytes from one row of B to the next.
    pub ldb_bytes: u32,
    /// Bytes from one row of C to the next.
    pub ldc_bytes: u32,
    /// Rows of C; with a transposed A, those of a batch item.
    pub m: u32,
    /// Columns of B and C.
    pub n: u32,
    /// Number of row blocks.
    pub panels: u32,
    /// Row blocks times tiles of columns.
    pub tiles: u32,
    /// Words of a list.
    pub stride: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Row blocks that share a B: all of them, or those of a batch item.
    pub item: Divisor,
    /// Bytes from the B of one batch item to the next.
    pub item_bytes: u64,
    /// Transposed A, row-major.
    pub a: u64,
    /// Bytes from one row of `a` to the next.
    pub lda_bytes: u32,
    /// Zero.
    pub reserved: u32,
    /// Bytes from the A of one batch item to the next, if A is transposed.
    pub a_item: u64,
    /// Bytes from the C of one batch item to the next, if A is transposed.
    pub c_item: u64,
}

const _: () = assert!(size_of::<PitParams>() == 256);
