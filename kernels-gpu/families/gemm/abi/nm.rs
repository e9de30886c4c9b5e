//! The module `nm`: C in tiles, A stored as two of four (2:4). Dynamic shared memory: the ring of stages
//! (A, B, and with `mma.sync` metadata), an output buffer for each consumer warpgroup, the barriers.

use core::marker::PhantomData;

use crate::abi::{
    AtomInfo, B_COLUMNS, LoaderInfo, MapWords, PANEL_BYTES, PLAIN, SMEM_TILE, Tile, Tma, Wgmma,
};

/// Bytes of one row of A in a stage: half of its columns are stored.
pub const NM_ROW_BYTES: usize = PANEL_BYTES / 2;
/// Steps of a stage along k: each is one sparse product of 32 bytes of A's rows, which cover 64 bytes of B's depth.
pub const NM_STEPS: usize = 2;

/// Stages whose metadata a lane loads at once. The number of stages of a tile is a multiple of it.
pub const NM_PAIR: usize = 2;

/// Columns of a row of A whose positions are one word of the format.
pub const NM_WORD: usize = 32;

/// Threads of a warpgroup, which hold the metadata of 64 rows.
pub const NM_HOLDERS: usize = 128;

/// Parameters of a [`TwoOfFour`]: bytes of an element, atom and loader.
pub trait NmForm {
    /// Bytes of an element. With one byte, B is also contiguous along k.
    const BYTES: usize;
    /// Atom.
    type A: AtomInfo;
    /// Loader.
    type L: LoaderInfo;
}

/// The [`NmForm`] with these parameters.
#[derive(Clone, Copy, Debug)]
pub struct NmOf<const BYTES: usize = 2, A = Wgmma, L = Tma>(PhantomData<(A, L)>);

impl<const BYTES: usize, A: AtomInfo, L: LoaderInfo> NmForm for NmOf<BYTES, A, L> {
    const BYTES: usize = BYTES;
    type A = A;
    type L = L;
}

/// Tile of the modules `nm` and `nm_narrow` and their `_mma` variants: each of two warpgroups computes `MA` x 64 rows
/// and `CHUNKS` x 64 columns.
#[derive(Clone, Copy, Debug)]
pub struct TwoOfFour<const MA: usize, const CHUNKS: usize, F>(PhantomData<F>);

impl<const MA: usize, const CHUNKS: usize, F: NmForm> TwoOfFour<MA, CHUNKS, F> {
    /// Depth of a stage: columns of A, of which half are stored, and rows of B.
    pub const DEPTH: usize = PANEL_BYTES / F::BYTES;
    /// Rows of C.
    pub const ROWS: usize = 2 * 64 * MA;
    /// Bytes of A in a stage.
    pub const A_BYTES: usize = Self::ROWS * NM_ROW_BYTES;
    /// Bytes of A and B in a stage: A's rows, then B's chunks of 64 columns.
    pub const OPERANDS: usize = Self::A_BYTES + CHUNKS * SMEM_TILE;
    /// Words of metadata of a thread for 64 rows of a stage.
    pub const META_WORDS: usize = 2 / F::BYTES;
    /// Bytes of the metadata of 64 rows for one of these words.
    pub const META_LINE: usize = 4 * NM_HOLDERS;
    /// Bytes of a stage. The metadata follows the operands, unless it is loaded to registers ahead of its stage.
    pub const STAGE: usize = Self::OPERANDS
        + if F::A::ASYNCHRONOUS { 0 } else { 2 * MA * Self::META_WORDS * Self::META_LINE };
    /// Threads that only copy.
    pub const PRODUCER_THREADS: u32 = 128;
    /// Stages of the ring.
    pub const STAGES: usize = {
        // The remaining bytes are those of the output buffers and barriers.
        let room = if F::A::ASYNCHRONOUS { 200 << 10 } else { F::L::SHARED - (17 << 10) };
        room / Self::STAGE
    };
    /// Offset of the output buffers, [`SMEM_TILE`] bytes for each warpgroup.
    pub const OUT: usize = Self::STAGES * Self::STAGE;
    /// Offset of the barriers: full and empty for each stage.
    pub const BARRIERS: usize = Self::OUT + 2 * SMEM_TILE;
}

impl<const MA: usize, const CHUNKS: usize, F: NmForm> Tile for TwoOfFour<MA, CHUNKS, F> {
    const THREADS: u32 = 256 + Self::PRODUCER_THREADS;
    const NEEDS: u32 = F::A::NEEDS | F::L::NEEDS;
    const STANDS_IN: bool = !F::A::ASYNCHRONOUS;
    const COLUMNS: u32 = 64 * CHUNKS as u32;
    const BURST: u32 = Self::STAGES as u32;
    const BLOCK: (u32, u32) = (Self::ROWS as u32, Self::DEPTH as u32);
    const ORDER: u32 = if F::BYTES == 1 { B_COLUMNS } else { PLAIN };
    const SHARED_BYTES: u32 = (Self::BARRIERS + Self::STAGES * 16) as u32;
    const ACCESS: u32 = 16;
}

/// Parameters of the kernels with tile [`TwoOfFour`]: `C[m,n] = epilogue(alpha * A[m,k] * B[k,n])`, or `B[n,k]`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NmParams {
    /// A's values, `[m, kp / 2]`.
    pub a_map: MapWords,
    /// B.
    pub b_map: MapWords,
    /// Metadata in the order of the lanes: `[rows / 64, pairs of stages, 128 threads, 2]`, for one-byte elements
    /// `[.., 4]`.
    pub meta: u64,
    /// First row and first column of each tile, u32 each, in the order of computation.
    pub tiles: u64,
    /// C, row-major.
    pub c: u64,
    /// Bias vector, or 0.
    pub bias: u64,
    /// Matrix of C's shape that gates C, or 0.
    pub gate: u64,
    /// Scalar factor of the product.
    pub alpha: f64,
    /// Columns of B and C.
    pub n: u32,
    /// Rows of C.
    pub m: u32,
    /// Bytes from one row of C to the next.
    pub ldc_bytes: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Pairs of stages of a tile; 0 if A has 0 columns.
    pub pairs: u32,
    /// Number of tiles.
    pub tile_count: u32,
    /// Zero, opaque to the compiler.
    pub zero: u32,
    /// Bytes from one row of `gate` to the next.
    pub gate_bytes: u32,
}

const _: () = assert!(size_of::<NmParams>() == 336);
