//! Module `grouped`: products of rows that are sorted by their matrix (expert),
//! `C[s,n] = act(A[row(s),k] * W[expert(s),k,n])`. Rows of A are gathered; rows of C are weighted and scattered (SRead
//! and SWrite of PIT, arXiv 2301.10936, on the m axis).

use core::marker::PhantomData;

use crate::abi::{
    AtomInfo, B_COLUMNS, CLUSTER, CpAsync, Divisor, FP8_MMA, LoaderInfo, MapWords, MmaQuarters,
    PANEL_BYTES, PLAIN, SMEM_TILE, STEP_NONE, Tile, Tma, Wgmma,
};

/// Rows of a row block: two warpgroups of 64.
pub const GROUPED_ROWS: usize = 128;
/// Elements along k of a stage.
pub const GROUPED_DEPTH: usize = 64;
/// Producer threads. With [`SCALED_COLUMNS`] as many more threads write W.
pub const GROUPED_PRODUCER_THREADS: u32 = 128;

/// Rows of A are indexed by the slots' tokens, otherwise by the slots.
pub const GROUPED_GATHER: u32 = 1 << 16;
/// Rows of C are indexed by the slots' choices, otherwise by the slots.
pub const GROUPED_SCATTER: u32 = 1 << 17;
/// W is read once, so its L2 policy is evict-first.
pub const GROUPED_ONCE: u32 = 1 << 18;
/// W and the row blocks are older than the preceding kernel: W is fetched while that kernel ends.
pub const GROUPED_EARLY: u32 = 1 << 19;
/// Stores zero where the gate's row of the slot is not positive.
pub const GROUPED_GATE: u32 = 1 << 20;
/// Row blocks have few rows: A's map has boxes of [`GROUPED_FEW`] rows.
pub const GROUPED_NARROW: u32 = 1 << 21;

/// C is rounded to its type, then quantized like A.
pub const GROUPED_QUANTIZE: u32 = 1 << 22;

/// Thread blocks run in clusters of two. They compute two row blocks of an expert, and each fetches half of W for both;
/// or they compute two tiles of one row block. The number of tiles across is even.
pub const GROUPED_PAIRED: u32 = 1 << 23;
/// Max number of columns of W in a box.
pub const GROUPED_BOX: usize = 128;

/// Rows of a box of A with [`GROUPED_NARROW`].
pub const GROUPED_FEW: usize = 16;

/// Order of W as `[expert, n, k]` of e4m3, with an f32 scale for each block of [`GROUPED_BLOCK`] x [`GROUPED_BLOCK`] of
/// a matrix.
pub const SCALED_COLUMNS: u32 = B_COLUMNS | 1 << 8;
/// Order of such a W if rows of A are e4m3 too, with an f32 scale for each
/// [`QUANTIZED_BLOCK`](crate::abi::QUANTIZED_BLOCK) of a row. Tensor Cores multiply the e4m3 codes, a stage holds twice
/// as many elements, and extents along k count pairs of them.
pub const QUANTIZED_COLUMNS: u32 = B_COLUMNS | 2 << 8;
/// Rows and columns of W that share a scale.
pub const GROUPED_BLOCK: usize = 128;

/// Step of tiles that compute `gate(A W_g) * (A W_u)`: the columns of gates first, then as many others.
pub const STEP_GROUPED_GATED: u32 = 1;

/// Shared memory for the stages of `cp.async` rows: some GPUs have only 99 KB.
const STAGES_BYTES: usize = 96 << 10;

/// Parameters of a [`GroupedTile`]: constants, atom and loader.
pub trait GroupedForm {
    /// [`PLAIN`], [`B_COLUMNS`] for W as `[expert, n, k]`, [`SCALED_COLUMNS`] or [`QUANTIZED_COLUMNS`].
    const ORDER: u32;
    /// Half of the columns are gates of the other half.
    const GATED: bool;
    /// Rows of a tile. With 64 rows a thread block computes the halves of a row block one after the other.
    const ROWS: usize;
    /// Atom of the products.
    type A: AtomInfo;
    /// Loader of A and W.
    type L: LoaderInfo;
}

/// The [`GroupedForm`] with these parameters.
#[derive(Clone, Copy, Debug)]
pub struct GroupedOf<
    const ORDER: u32,
    const GATED: bool = false,
    const ROWS: usize = GROUPED_ROWS,
    A = Wgmma,
    L = Tma,
>(PhantomData<(A, L)>);

impl<const ORDER: u32, const GATED: bool, const ROWS: usize, A: AtomInfo, L: LoaderInfo> GroupedForm
    for GroupedOf<ORDER, GATED, ROWS, A, L>
{
    const ORDER: u32 = ORDER;
    const GATED: bool = GATED;
    const ROWS: usize = ROWS;
    type A = A;
    type L = L;
}

/// Tile of `grouped`: [`GroupedForm::ROWS`] rows by `CHUNKS` x 64 columns of W.
#[derive(Clone, Copy, Debug)]
pub struct GroupedTile<const CHUNKS: usize, F>(PhantomData<F>);

impl<const CHUNKS: usize, F: GroupedForm> GroupedTile<CHUNKS, F> {
    /// Consumer warps.
    pub const CONSUMER_WARPS: u32 = F::ROWS as u32 / 16;
    /// Whether four warps write a scaled W to the stages.
    pub const WRITES: bool = F::ORDER == SCALED_COLUMNS && F::A::ASYNCHRONOUS;
    /// Whether the producers convert codes to elements.
    pub const CONVERTS: bool = (F::ORDER == SCALED_COLUMNS || F::ORDER == QUANTIZED_COLUMNS)
        && !F::A::ASYNCHRONOUS
        && F::A::NEEDS & FP8_MMA == 0;
    /// Extent along k of a stage.
    pub const STAGE_K: u32 = match (F::ORDER, Self::CONVERTS) {
        (QUANTIZED_COLUMNS, true) => GROUPED_DEPTH as u32 / 2,
        _ => GROUPED_DEPTH as u32,
    };
    /// Chunks of 64 columns of C.
    pub const OUT_CHUNKS: usize = if F::GATED { CHUNKS / 2 } else { CHUNKS };
    /// Whether it may run in clusters of two.
    pub const PAIRS: bool =
        CHUNKS == 4 && (F::ORDER == PLAIN || F::ORDER == B_COLUMNS) && F::L::BY_ONE;
    /// Bytes of A in a stage.
    pub const A_BYTES: usize = F::ROWS * PANEL_BYTES;
    /// Bytes of W in a stage.
    pub const W_BYTES: usize =
        CHUNKS * if Self::WRITES || Self::CONVERTS { SMEM_TILE } else { Self::CHUNK_BYTES };
    /// Bytes of a stage.
    pub const STAGE: usize = Self::A_BYTES + Self::W_BYTES;
    /// Stages of the ring.
    pub const STAGES: usize = match (F::A::ASYNCHRONOUS, F::ORDER, CHUNKS) {
        (true, SCALED_COLUMNS, _) | (true, _, 4) => 4,
        (true, _, 2) => 6,
        (true, ..) => 8,
        // Uses more than 99 KB.
        (false, _, 3) => 4,
        (false, ..) => STAGES_BYTES / Self::STAGE,
    };
    /// Boxes of W in a stage with [`B_COLUMNS`].
    pub const BOXES: usize = match (F::GATED, F::L::BY_ONE) {
        (true, _) => 2,
        (false, true) => (64 * CHUNKS).div_ceil(GROUPED_BOX),
        (false, false) => 1,
    };
    /// Bytes of 64 columns of W as copied from global memory.
    pub const CHUNK_BYTES: usize = match F::ORDER {
        SCALED_COLUMNS => SMEM_TILE / 2,
        _ => SMEM_TILE,
    };
    /// Neighbouring chunks of W that share a scale.
    pub const SCALE_CHUNKS: usize = if F::GATED { Self::OUT_CHUNKS } else { 2 };
    /// Extent along k of a scale of W.
    pub const SCALE_DEPTH: usize = match F::ORDER {
        QUANTIZED_COLUMNS => GROUPED_BLOCK / 2,
        _ => GROUPED_BLOCK,
    };
    /// Stages of the ring of e4m3 codes.
    pub const CODE_STAGES: usize = if Self::WRITES { 8 } else { 0 };
    /// Offset of the output buffers, [`SMEM_TILE`] bytes for each warpgroup. Synchronous atoms do not use them: their
    /// epilogue reuses the shared memory of the warpgroup's rows of A.
    pub const OUT: usize = Self::STAGES * Self::STAGE;
    /// Offset of the e4m3 codes.
    pub const CODES: usize = Self::OUT + if F::A::ASYNCHRONOUS { 2 * SMEM_TILE } else { 0 };
    /// Offset of the barriers: full and empty for each stage, then for each stage of e4m3 codes.
    pub const BARRIERS: usize = Self::CODES + Self::CODE_STAGES * CHUNKS * Self::CHUNK_BYTES;
}

impl<const CHUNKS: usize, F: GroupedForm> Tile for GroupedTile<CHUNKS, F> {
    const THREADS: u32 =
        32 * Self::CONSUMER_WARPS + GROUPED_PRODUCER_THREADS * if Self::WRITES { 2 } else { 1 };
    const NEEDS: u32 = F::A::NEEDS | F::L::NEEDS | if Self::PAIRS { CLUSTER } else { 0 };
    const STANDS_IN: bool = !F::A::ASYNCHRONOUS;
    const COLUMNS: u32 = 64 * Self::OUT_CHUNKS as u32;
    const STEP: u32 = if F::GATED { STEP_GROUPED_GATED } else { STEP_NONE };
    const BURST: u32 = Self::STAGES as u32;
    const BLOCK: (u32, u32) = (F::ROWS as u32, GROUPED_DEPTH as u32);
    const ORDER: u32 = F::ORDER;
    const SHARED_BYTES: u32 = (Self::BARRIERS + (Self::STAGES + Self::CODE_STAGES) * 16) as u32;
    const ACCESS: u32 = 16;
}

const _: () = assert!(GroupedTile::<4, GroupedOf<PLAIN>>::BARRIERS + 128 <= 227 << 10);
const _: () = assert!(GroupedTile::<2, GroupedOf<B_COLUMNS>>::BARRIERS + 128 <= 227 << 10);
const _: () = assert!(GroupedTile::<1, GroupedOf<B_COLUMNS>>::BARRIERS + 128 <= 227 << 10);
const _: () = assert!(GroupedTile::<2, GroupedOf<SCALED_COLUMNS>>::SHARED_BYTES <= 227 << 10);
const _: () = assert!(
    GroupedTile::<3, GroupedOf<B_COLUMNS, false, 128, MmaQuarters, CpAsync>>::SHARED_BYTES
        <= 163 << 10
);
const _: () = assert!(
    GroupedTile::<2, GroupedOf<PLAIN, false, 128, MmaQuarters, CpAsync>>::SHARED_BYTES <= 99 << 10
);

/// Parameters of the `grouped` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GroupedParams {
    /// Map of A by slots, in tiles of 64 columns x 128 rows, or [`GROUPED_FEW`]. Not read with [`GROUPED_GATHER`].
    pub a_map: MapWords,
    /// Map of W, in tiles of 64 columns x 64 rows of one expert. With [`B_COLUMNS`] a tile has as many rows as C's tile
    /// has columns, up to [`GROUPED_BOX`].
    pub w_map: MapWords,
    /// A, row-major.
    pub a: u64,
    /// C, row-major.
    pub c: u64,
    /// Choice (token and expert) of each slot.
    pub order: u64,
    /// First slot of each expert, first slot without an expert, and the number of slots.
    pub offsets: u64,
    /// Number of row blocks, then a record of each one.
    pub panels: u64,
    /// f32 weight of each choice, or 0 for unweighted rows.
    pub weights: u64,
    /// Gate by slots, in C's shape.
    pub gate: u64,
    /// Choices of each token.
    pub top: Divisor,
    /// Tiles across C.
    pub across: Divisor,
    /// Columns of C. W has as many, or with gates twice as many.
    pub n: u32,
    /// Columns of A, which are rows of W.
    pub k: u32,
    /// Bytes from one row of A to the next.
    pub lda_bytes: u32,
    /// Bytes from one row of C to the next.
    pub ldc_bytes: u32,
    /// Bytes from one row of the gate to the next.
    pub gate_bytes: u32,
    /// Number of experts.
    pub experts: u32,
    /// Number of slots, including those without an expert.
    pub slots: u32,
    /// `FLAG_*`, which include the activation or the gate, and `GROUPED_*`.
    pub flags: u32,
    /// f32 scale of each block of W, row-major, with [`SCALED_COLUMNS`] and [`QUANTIZED_COLUMNS`].
    pub scales: u64,
    /// f32 scale of each block of A's rows, two for each stage, with [`QUANTIZED_COLUMNS`].
    pub a_scales: u64,
    /// f32 scale of each block of C's rows, with [`GROUPED_QUANTIZE`].
    pub c_scales: u64,
}

const _: () = assert!(size_of::<GroupedParams>() == 384);
