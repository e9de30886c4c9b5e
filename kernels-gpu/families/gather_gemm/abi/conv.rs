//! Module `conv`: output-stationary gather-GEMM-scatter. A thread block computes 128 rows of the output by a tile of
//! columns. It iterates over the kernel offsets at which any of its rows has a neighbour, gathers the neighbours' rows
//! and multiplies them by the offset's matrix: `Out[o,m] = sum over t, c of In[neighbour(t,o),c] * W[t,c,m]`. Output
//! rows are sorted by their offsets; a *position* is an index in this order. A tile is 128 adjacent positions.

use core::marker::PhantomData;

use crate::abi::{AtomInfo, B_COLUMNS, MapWords, MmaSync, SMEM_TILE, TMA, Tile, Wgmma};

/// Output rows of a thread block.
pub const CONV_ROWS: usize = 128;
/// Rows that one mask covers: those of a consumer warpgroup.
pub const CONV_HALF: usize = 64;
/// Min number of producer threads: two warps.
pub const CONV_PRODUCER_THREADS: u32 = 64;
/// Kernel offsets whose row indices are prefetched: at least as many as there are stages. The wait for the indices of
/// an offset then waits only for copies of stages that have been refilled since.
pub const CONV_AHEAD: u32 = 6;
/// [`CONV_AHEAD`] of tiles without `wgmma`, whose stages leave less shared memory.
pub const CONV_AHEAD_SYNC: u32 = 3;
/// Index of a missing neighbour, and of an output row past the last one.
pub const CONV_ABSENT: u32 = u32::MAX;

/// Parameters of a [`Gathered`]: constants and atom.
pub trait GatheredForm {
    /// Order of the matrices; with [`B_COLUMNS`] they are stored as `[t, m, c]`.
    const ORDER: u32;
    /// Bytes of an element.
    const BYTES: usize;
    /// Atom; if it is `wgmma`, TMA copies the matrices.
    type A: AtomInfo;
}

/// [`GatheredForm`] as a type.
#[derive(Clone, Copy, Debug)]
pub struct GatheredOf<const ORDER: u32, const BYTES: usize = 2, A = Wgmma>(PhantomData<A>);

impl<const ORDER: u32, const BYTES: usize, A: AtomInfo> GatheredForm
    for GatheredOf<ORDER, BYTES, A>
{
    const ORDER: u32 = ORDER;
    const BYTES: usize = BYTES;
    type A = A;
}

/// Tile of `conv`: 128 rows by `CHUNKS` x 64 columns. Without `wgmma`, one warpgroup multiplies all rows: a warp loads
/// each fragment of the matrix once for 32 rows.
#[derive(Clone, Copy, Debug)]
pub struct Gathered<const CHUNKS: usize, F>(PhantomData<F>);

impl<const CHUNKS: usize, F: GatheredForm> Gathered<CHUNKS, F> {
    /// Channels of a stage: 128 bytes.
    pub const DEPTH: usize = 128 / F::BYTES;
    /// Halves of 64 rows that a consumer warpgroup multiplies.
    pub const HALVES: usize = if F::A::ASYNCHRONOUS { 1 } else { 2 };
    /// 1 if one warpgroup multiplies both halves.
    pub const TOGETHER: u32 = Self::HALVES as u32 - 1;
    /// Consumer warps.
    pub const CONSUMER_WARPS: u32 = 8 / Self::HALVES as u32;
    /// Producer threads. With 64 accumulators a thread or more, two thread blocks have registers for only two producer
    /// warps each.
    pub const PRODUCER_THREADS: u32 = match (CHUNKS * Self::HALVES, Self::ALONE) {
        (1, _) | (_, true) => 128,
        _ => CONV_PRODUCER_THREADS,
    };
    /// Rows of a stage of which each producer thread gathers 16 bytes.
    pub const SHARE: usize = CONV_ROWS * 8 / Self::PRODUCER_THREADS as usize;
    /// Bytes of the matrix in a stage.
    pub const B_BYTES: usize = CHUNKS * SMEM_TILE;
    /// Bytes of a stage: gathered input rows, then the matrix.
    pub const STAGE: usize = 2 * SMEM_TILE + Self::B_BYTES;
    /// Whether one thread block occupies a multiprocessor: fragments of A and 64 accumulators need its registers.
    pub const ALONE: bool = F::BYTES == 4 && CHUNKS > 1 && F::A::ASYNCHRONOUS;
    /// Stages of the ring. Two thread blocks share a multiprocessor unless [`Self::ALONE`].
    pub const STAGES: usize = match (CHUNKS, Self::ALONE) {
        // Limit: 99 KB of shared memory, or half of the 164 KB of compute capability 8.0 for 64 columns.
        _ if !F::A::ASYNCHRONOUS => 3,
        (_, true) => 6,
        (1, _) => 4,
        _ => 3,
    };
    /// Offset of the output buffers, [`SMEM_TILE`] bytes for each half. Outputs of 4 bytes use none. Without `wgmma`
    /// they overlap the stages.
    pub const OUT: usize = if F::A::ASYNCHRONOUS { Self::INDEX } else { 0 };
    /// Kernel offsets whose row indices are prefetched.
    pub const AHEAD: u32 = if F::A::ASYNCHRONOUS { CONV_AHEAD } else { CONV_AHEAD_SYNC };
    /// Capacity of the index ring.
    pub const ENTRIES: u32 = Self::AHEAD + 2;
    /// Offset of the index ring. With `wgmma` it overlaps the output buffers. Consumers use these only after the last
    /// stage is full, and producers read the last indices before it is.
    pub const INDEX: usize = Self::STAGES * Self::STAGE;
    /// Offset of the barriers: full and empty for each stage.
    pub const BARRIERS: usize = if F::BYTES == 2 && F::A::ASYNCHRONOUS {
        Self::OUT + 2 * SMEM_TILE
    } else {
        Self::INDEX + Self::ENTRIES as usize * CONV_ROWS * 4
    };
}

impl<const CHUNKS: usize, F: GatheredForm> Tile for Gathered<CHUNKS, F> {
    const NEEDS: u32 = if F::A::ASYNCHRONOUS { F::A::NEEDS | TMA } else { 0 };
    const STANDS_IN: bool = !F::A::ASYNCHRONOUS;
    const THREADS: u32 = 32 * Self::CONSUMER_WARPS + Self::PRODUCER_THREADS;
    const MIN_BLOCKS: u32 = if Self::ALONE { 1 } else { 2 };
    const COLUMNS: u32 = 64 * CHUNKS as u32;
    const ITEMS: u32 = CONV_ROWS as u32;
    const BURST: u32 = Self::STAGES as u32;
    const BLOCK: (u32, u32) = (CONV_ROWS as u32, Self::DEPTH as u32);
    const ORDER: u32 = F::ORDER;
    const SHARED_BYTES: u32 = (Self::BARRIERS + Self::STAGES * 16) as u32;
    /// Rows are copied in pieces of 16 bytes, and TMA strides are multiples of 16.
    const ACCESS: u32 = 16;
}

const _: () = assert!(Gathered::<2, GatheredOf<B_COLUMNS, 2>>::BARRIERS + 48 <= 115_712);
const _: () = assert!(Gathered::<1, GatheredOf<B_COLUMNS, 4>>::BARRIERS + 64 <= 115_712);
/// Max shared memory of a thread block on GPUs of compute capability 8.6, 8.9 and 12.0.
const _: () = assert!(Gathered::<2, GatheredOf<B_COLUMNS, 2, MmaSync>>::SHARED_BYTES <= 99 << 10);
const _: () = assert!(Gathered::<2, GatheredOf<B_COLUMNS, 4, MmaSync>>::SHARED_BYTES <= 99 << 10);
/// Two thread blocks share a multiprocessor of compute capability 8.0, which reserves 1 KB for each.
const _: () = assert!(
    2 * (Gathered::<1, GatheredOf<B_COLUMNS, 4, MmaSync>>::SHARED_BYTES + 1024) <= 164 << 10
);
const _: () = assert!(GatheredPairs::<1, 1, MmaSync>::SHARED_BYTES <= 99 << 10);
const _: () = assert!(GatheredPairs::<2, 2, MmaSync>::SHARED_BYTES <= 99 << 10);

/// Parameters of the `conv` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ConvParams {
    /// Tensor map of the matrices: tiles of one offset's matrix.
    pub w_map: MapWords,
    /// Input rows.
    pub input: u64,
    /// Output rows.
    pub out: u64,
    /// Bias of the columns, or 0.
    pub bias: u64,
    /// Input row for each offset and position, or [`CONV_ABSENT`].
    pub neighbours: u64,
    /// Output row of each position, or [`CONV_ABSENT`].
    pub order: u64,
    /// Mask of each 64 positions, `words` words: the offsets at which any of them has a neighbour.
    pub masks: u64,
    /// Tiles of 128 positions in launch order: two tiles of the same 256 positions are adjacent, an unpaired tile is
    /// last.
    pub schedule: u64,
    /// Positions, a multiple of 128.
    pub stride: u32,
    /// Words of a mask.
    pub words: u32,
    /// Bytes of the channels of an input row.
    pub depth_bytes: u32,
    /// Columns of the output.
    pub n: u32,
    /// Bytes from one row of the input to the next.
    pub in_bytes: u32,
    /// Bytes from one row of the output to the next.
    pub out_bytes: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Scalar factor of the product.
    pub alpha: f32,
}

const _: () = assert!(size_of::<ConvParams>() == 216);

/// Step of the gradient of the weights, of modules `conv_grad` and `conv_pairs`.
pub const CONV_GRADIENT: u32 = 12;

/// Tile of `conv_grad`, the gradient of the weights: `GROUPS` x 64 channels of the input by `CHUNKS` x 64 of the
/// output, over the pairs of one offset. With one group the two warpgroups alternate between stages and add their
/// accumulators at the end.
#[derive(Clone, Copy, Debug)]
pub struct GatheredPairs<const GROUPS: usize, const CHUNKS: usize, A = Wgmma>(PhantomData<A>);

impl<const GROUPS: usize, const CHUNKS: usize, A: AtomInfo> GatheredPairs<GROUPS, CHUNKS, A> {
    /// Bytes of a stage: 64 rows of the input, then 64 of the gradient.
    pub const STAGE: usize = (GROUPS + CHUNKS) * SMEM_TILE;
    /// Stages of the ring; two thread blocks share a multiprocessor.
    pub const STAGES: usize = match (GROUPS + CHUNKS, A::ASYNCHRONOUS) {
        (2, true) => 6,
        (3, true) => 4,
        _ => 3,
    };
    /// Producer threads, limited by registers.
    pub const PRODUCER_THREADS: u32 =
        if GROUPS + CHUNKS == 2 { 128 } else { CONV_PRODUCER_THREADS };
    /// Rows of a stage of which each producer thread gathers 16 bytes.
    pub const SHARE: usize = CONV_HALF * 8 / Self::PRODUCER_THREADS as usize;
    /// Offset of the barriers: full and empty for each stage.
    pub const BARRIERS: usize = Self::STAGES * Self::STAGE;
}

impl<const GROUPS: usize, const CHUNKS: usize, A: AtomInfo> Tile
    for GatheredPairs<GROUPS, CHUNKS, A>
{
    const NEEDS: u32 = A::NEEDS;
    const STANDS_IN: bool = !A::ASYNCHRONOUS;
    const THREADS: u32 = 256 + Self::PRODUCER_THREADS;
    // Fragments and 64 accumulators a thread leave too few registers for two thread blocks.
    const MIN_BLOCKS: u32 = if A::ASYNCHRONOUS || GROUPS + CHUNKS == 2 { 2 } else { 1 };
    const COLUMNS: u32 = 64 * CHUNKS as u32;
    const ITEMS: u32 = 64 * GROUPS as u32;
    const BURST: u32 = Self::STAGES as u32;
    const BLOCK: (u32, u32) = (64 * GROUPS as u32, CONV_HALF as u32);
    const STEP: u32 = CONV_GRADIENT;
    const SHARED_BYTES: u32 = (Self::BARRIERS + Self::STAGES * 16) as u32;
    const ACCESS: u32 = 16;
}

/// Tile of `conv_pairs`, the gradient of the weights in f32 or TF32: `SIDE` channels of the input by `SIDE` of the
/// output, 32 pairs a stage. `VECTORS`: rows allow copies of 16 bytes; otherwise they have any alignment. A warp has 32
/// x 64 accumulators. With a side of 64 four warps share a tile, each with its own pairs of a stage.
#[derive(Clone, Copy, Debug)]
pub struct Paired<const SIDE: usize, const VECTORS: bool>;

/// Pairs of a stage of `conv_pairs`.
pub const PAIRS_STAGE: usize = 32;

impl<const SIDE: usize, const VECTORS: bool> Paired<SIDE, VECTORS> {
    /// Bytes of the input rows of a stage, or of its gradient rows.
    pub const ROWS: usize = PAIRS_STAGE * SIDE * 4;
    /// Bytes of a stage: input rows, then gradient rows.
    pub const STAGE: usize = 2 * Self::ROWS;
    /// Stages of the ring; two thread blocks share a multiprocessor.
    pub const STAGES: usize = if SIDE == 64 { 6 } else { 3 };
    /// Warps across the columns.
    pub const ACROSS: u32 = SIDE as u32 / 64;
    /// Warps that share a tile, each with a part of the pairs.
    pub const WARPS_OF_TILE: u32 = 8 / (Self::ACROSS * SIDE as u32 / 32);
    /// Offset of the row indices of two stages: input rows, then output rows.
    pub const INDEX: usize = Self::STAGES * Self::STAGE;
}

impl<const SIDE: usize, const VECTORS: bool> Tile for Paired<SIDE, VECTORS> {
    const THREADS: u32 = 256;
    const MIN_BLOCKS: u32 = 2;
    const COLUMNS: u32 = SIDE as u32;
    const ITEMS: u32 = SIDE as u32;
    const BURST: u32 = Self::STAGES as u32;
    const BLOCK: (u32, u32) = (SIDE as u32, PAIRS_STAGE as u32);
    const STEP: u32 = CONV_GRADIENT;
    const SHARED_BYTES: u32 = (Self::INDEX + 2 * 2 * PAIRS_STAGE * 4) as u32;
    const ACCESS: u32 = if VECTORS { 16 } else { 1 };
}

/// Tile of `conv_simt`: `DOWN` x 32 rows by `ACROSS` x 64 columns on CUDA cores. `VECTORS`: rows allow copies of 16
/// bytes; otherwise they have any alignment.
#[derive(Clone, Copy, Debug)]
pub struct GatheredWords<const DOWN: usize, const ACROSS: usize, const VECTORS: bool>;

impl<const DOWN: usize, const ACROSS: usize, const VECTORS: bool>
    GatheredWords<DOWN, ACROSS, VECTORS>
{
    /// Rows of the tile.
    pub const ROWS: usize = 32 * DOWN;
    /// Bytes of the gathered rows of a stage, 32 channels each.
    pub const GATHERED: usize = Self::ROWS * 32 * 4;
    /// Bytes of a stage: gathered rows, then 32 channels of the matrix.
    pub const STAGE: usize = Self::GATHERED + 32 * Self::COLUMNS as usize * 4;
    /// Stages of the ring.
    pub const STAGES: usize = if DOWN * ACROSS == 8 { 3 } else { 2 };
    /// Offset of the input row indices of two kernel offsets.
    pub const INDEX: usize = Self::STAGES * Self::STAGE;
    /// Offset of each thread's record of the next kernel offset: [`CONV_WORDS_NOTES`] bytes.
    pub const NOTES: usize = Self::INDEX + 2 * Self::ROWS * 4;
}

/// Bytes of shared memory a thread of `conv_simt` for values that do not fit into its registers.
pub const CONV_WORDS_NOTES: usize = 32;

impl<const DOWN: usize, const ACROSS: usize, const VECTORS: bool> Tile
    for GatheredWords<DOWN, ACROSS, VECTORS>
{
    const THREADS: u32 = 32 * (DOWN * ACROSS) as u32;
    /// 512 threads have 128 registers each.
    const MIN_BLOCKS: u32 = 512 / Self::THREADS;
    const COLUMNS: u32 = 64 * ACROSS as u32;
    const ITEMS: u32 = Self::ROWS as u32;
    const BURST: u32 = Self::STAGES as u32;
    const BLOCK: (u32, u32) = (Self::ROWS as u32, 32);
    const SHARED_BYTES: u32 = (Self::NOTES + Self::THREADS as usize * CONV_WORDS_NOTES) as u32;
    const ACCESS: u32 = if VECTORS { 16 } else { 1 };
}

/// Work item of a gradient of the weights: some of the blocks of 64 positions at which an offset has neighbours.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ConvPart {
    /// Kernel offset.
    pub offset: u32,
    /// Index of the first block in the list of blocks.
    pub first: u32,
    /// Number of blocks of 64 positions.
    pub count: u32,
    /// Unused: pads the record to one load of 16 bytes.
    pub pad: u32,
}

const _: () = assert!(size_of::<ConvPart>() == 16);

impl ConvPart {
    /// Returns the words as stored in device memory.
    pub const fn words(self) -> [u32; 4] {
        [self.offset, self.first, self.count, self.pad]
    }

    /// Makes a part from its words.
    #[inline(always)]
    pub const fn of([offset, first, count, pad]: [u32; 4]) -> ConvPart {
        ConvPart { offset, first, count, pad }
    }
}

/// Parameters of the kernels `conv_mma`, `conv_simt`, `conv_grad` and `conv_pairs`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ConvWordsParams {
    /// Parameters shared with `conv`. For gradients `out` is the partial sums of the weights' gradient. Their
    /// `schedule` lists the numbers of blocks of 64 positions, one [`ConvPart`] after the other.
    pub base: ConvParams,
    /// Weights `[t, c, m]`, or the gradient of the output.
    pub weights: u64,
    /// A [`ConvPart`] for each thread block of a gradient kernel.
    pub parts: u64,
    /// Bytes from one row of the weights to the next.
    pub weights_bytes: u32,
    /// Channels of the input.
    pub channels: u32,
}

const _: () = assert!(size_of::<ConvWordsParams>() == 240);
