//! The module `conv`: gather-GEMM-scatter, stationary in the output. A thread block owns 128 rows of the output and a
//! tile of columns, walks the offsets that any of its rows has a neighbour at, gathers the neighbours' rows and
//! multiplies them with the offset's matrix: `Out[o,m] = sum over t, c of In[neighbour(t,o),c] * W[t,c,m]`.

use core::marker::PhantomData;

use crate::abi::{AtomInfo, B_COLUMNS, MapWords, MmaSync, SMEM_TILE, TMA, Tile, Wgmma};

/// Rows of the output of a thread block.
pub const CONV_ROWS: usize = 128;
/// Rows that one mask speaks of: those of a warpgroup.
pub const CONV_HALF: usize = 64;
/// Threads that gather, at the least: two warps.
pub const CONV_COPIERS: u32 = 64;
/// Offsets whose rows are looked up ahead of the one that is gathered, as many as there are stages or more; and room
/// for them, a power of two.
pub const CONV_AHEAD: u32 = 6;
/// See [`CONV_AHEAD`].
pub const CONV_ENTRIES: u32 = 8;
/// A neighbour that is not there; an output row behind the last.
pub const CONV_ABSENT: u32 = u32::MAX;

/// Tile of `conv`: 128 rows by `CHUNKS` x 64 columns of elements of `BYTES` bytes; [`B_COLUMNS`]: the matrices lie as
/// `[t, m, c]`. `A` multiplies; where that is `wgmma`, the copy engine brings the matrices.
#[derive(Clone, Copy, Debug)]
pub struct Gathered<const CHUNKS: usize, const ORDER: u32, const BYTES: usize = 2, A = Wgmma>(
    PhantomData<A>,
);

impl<const CHUNKS: usize, const ORDER: u32, const BYTES: usize, A: AtomInfo>
    Gathered<CHUNKS, ORDER, BYTES, A>
{
    /// Channels of a stage, 128 bytes.
    pub const DEPTH: usize = 128 / BYTES;
    /// Threads that gather. Where a thread has 64 sums, two thread blocks have registers for no more than two such
    /// warps each.
    pub const COPIERS: u32 = if CHUNKS == 1 || Self::ALONE { 128 } else { CONV_COPIERS };
    /// Rows of a stage that each of them gathers 16 bytes of.
    pub const SHARE: usize = CONV_ROWS * 8 / Self::COPIERS as usize;
    /// Bytes of a stage's part of the matrix.
    pub const B_BYTES: usize = CHUNKS * SMEM_TILE;
    /// Bytes of a stage: rows of the input, then the matrix.
    pub const STAGE: usize = 2 * SMEM_TILE + Self::B_BYTES;
    /// Whether a thread block has the multiprocessor to itself: fragments of A beside 64 sums do not fit otherwise.
    pub const ALONE: bool = BYTES == 4 && CHUNKS > 1;
    /// Stages in flight: two thread blocks share a multiprocessor.
    pub const STAGES: usize = match (CHUNKS, Self::ALONE) {
        // 99 KB of shared memory.
        _ if !A::ASYNCHRONOUS => 3,
        (_, true) => 6,
        (1, _) => 4,
        _ => 3,
    };
    /// Offset of the output buffers, [`SMEM_TILE`] bytes of each warpgroup; results of 4 bytes need none.
    pub const OUT: usize = Self::STAGES * Self::STAGE;
    /// Offset of the rows of the next offsets: where results go once no offset is left.
    pub const INDEX: usize = Self::OUT;
    /// Offset of the barriers: full and empty of each stage.
    pub const BARRIERS: usize = if BYTES == 2 {
        Self::OUT + 2 * SMEM_TILE
    } else {
        Self::INDEX + CONV_ENTRIES as usize * CONV_ROWS * 4
    };
}

impl<const CHUNKS: usize, const ORDER: u32, const BYTES: usize, A: AtomInfo> Tile
    for Gathered<CHUNKS, ORDER, BYTES, A>
{
    const NEEDS: u32 = if A::ASYNCHRONOUS { A::NEEDS | TMA } else { 0 };
    const THREADS: u32 = 256 + Self::COPIERS;
    const MIN_BLOCKS: u32 = if Self::ALONE { 1 } else { 2 };
    const COLUMNS: u32 = 64 * CHUNKS as u32;
    const ITEMS: u32 = CONV_ROWS as u32;
    const BURST: u32 = Self::STAGES as u32;
    const BLOCK: (u32, u32) = (CONV_ROWS as u32, Self::DEPTH as u32);
    const ORDER: u32 = ORDER;
    const SHARED_BYTES: u32 = (Self::BARRIERS + Self::STAGES * 16) as u32;
    /// Copies of 16 bytes of a row, and the copy engine's strides.
    const ACCESS: u32 = 16;
}

const _: () = assert!(Gathered::<2, B_COLUMNS, 2>::BARRIERS + 48 <= 115_712);
const _: () = assert!(Gathered::<1, B_COLUMNS, 4>::BARRIERS + 64 <= 115_712);
/// What a thread block may have on GPUs of compute capability 8.6, 8.9 and 12.0.
const _: () = assert!(Gathered::<1, B_COLUMNS, 2, MmaSync>::SHARED_BYTES <= 99 << 10);
const _: () = assert!(Gathered::<1, B_COLUMNS, 4, MmaSync>::SHARED_BYTES <= 99 << 10);
const _: () = assert!(GatheredPairs::<1, 1, MmaSync>::SHARED_BYTES <= 99 << 10);
const _: () = assert!(GatheredPairs::<2, 2, MmaSync>::SHARED_BYTES <= 99 << 10);
const _: () = assert!(CONV_ENTRIES > CONV_AHEAD + 1);

/// Parameters of the `conv` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ConvParams {
    /// The matrices: tiles of one offset's.
    pub w_map: MapWords,
    /// Input rows.
    pub input: u64,
    /// Output rows.
    pub out: u64,
    /// Bias of a column, or 0.
    pub bias: u64,
    /// For each offset and position the input row, or [`CONV_ABSENT`].
    pub neighbours: u64,
    /// The output row of each position, or [`CONV_ABSENT`].
    pub order: u64,
    /// For each 64 positions the offsets that any of them has a neighbour at, `words` words.
    pub masks: u64,
    /// Tiles of 128 positions in the order they are taken in: two that share 256 positions one behind the other, a
    /// single one last.
    pub schedule: u64,
    /// Positions, a multiple of 128.
    pub stride: u32,
    /// Words of a mask.
    pub words: u32,
    /// Bytes of the channels of a row of the input.
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
/// output, over the pairs of one offset. With one group the two warpgroups take stages in turn and add their sums up at
/// the end.
#[derive(Clone, Copy, Debug)]
pub struct GatheredPairs<const GROUPS: usize, const CHUNKS: usize, A = Wgmma>(PhantomData<A>);

impl<const GROUPS: usize, const CHUNKS: usize, A: AtomInfo> GatheredPairs<GROUPS, CHUNKS, A> {
    /// Bytes of a stage: 64 rows of the input, then of the gradient.
    pub const STAGE: usize = (GROUPS + CHUNKS) * SMEM_TILE;
    /// Stages in flight: two thread blocks share a multiprocessor.
    pub const STAGES: usize = match (GROUPS + CHUNKS, A::ASYNCHRONOUS) {
        (2, true) => 6,
        (3, true) => 4,
        _ => 3,
    };
    /// Threads that gather: as many as there are registers for.
    pub const COPIERS: u32 = if GROUPS + CHUNKS == 2 { 128 } else { CONV_COPIERS };
    /// Rows of a stage that each of them gathers 16 bytes of.
    pub const SHARE: usize = CONV_HALF * 8 / Self::COPIERS as usize;
    /// Offset of the barriers: full and empty of each stage.
    pub const BARRIERS: usize = Self::STAGES * Self::STAGE;
}

impl<const GROUPS: usize, const CHUNKS: usize, A: AtomInfo> Tile
    for GatheredPairs<GROUPS, CHUNKS, A>
{
    const NEEDS: u32 = A::NEEDS;
    const STANDS_IN: bool = !A::ASYNCHRONOUS;
    const THREADS: u32 = 256 + Self::COPIERS;
    // Fragments beside 64 sums take too many registers for two.
    const MIN_BLOCKS: u32 = if A::ASYNCHRONOUS || GROUPS + CHUNKS == 2 { 2 } else { 1 };
    const COLUMNS: u32 = 64 * CHUNKS as u32;
    const ITEMS: u32 = 64 * GROUPS as u32;
    const BURST: u32 = Self::STAGES as u32;
    const BLOCK: (u32, u32) = (64 * GROUPS as u32, CONV_HALF as u32);
    const STEP: u32 = CONV_GRADIENT;
    const SHARED_BYTES: u32 = (Self::BARRIERS + Self::STAGES * 16) as u32;
    const ACCESS: u32 = 16;
}

/// Tile of `conv_pairs`, the gradient of the weights in f32 or TF32: `SIDE` channels of the input by as many of the
/// output, 32 pairs a stage, of rows that allow copies of 16 bytes (`VECTORS`) or of any. A warp has 32 x 64 sums; with
/// a side of 64 four warps share them, each with its pairs of a stage.
#[derive(Clone, Copy, Debug)]
pub struct Paired<const SIDE: usize, const VECTORS: bool>;

/// Pairs of a stage of `conv_pairs`.
pub const PAIRS_STAGE: usize = 32;

impl<const SIDE: usize, const VECTORS: bool> Paired<SIDE, VECTORS> {
    /// Bytes of the input's or of the gradient's rows of a stage.
    pub const ROWS: usize = PAIRS_STAGE * SIDE * 4;
    /// Bytes of a stage: rows of the input, then of the gradient.
    pub const STAGE: usize = 2 * Self::ROWS;
    /// Stages in flight: two thread blocks share a multiprocessor.
    pub const STAGES: usize = if SIDE == 64 { 6 } else { 3 };
    /// Warps across the columns.
    pub const ACROSS: u32 = SIDE as u32 / 64;
    /// Warps that share their sums.
    pub const DEEP: u32 = 8 / (Self::ACROSS * SIDE as u32 / 32);
    /// Offset of the rows of two stages: input, then output.
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

/// Tile of `conv_simt`: `DOWN` x 32 rows by `ACROSS` x 64 columns on CUDA cores, of rows that allow copies of 16 bytes
/// (`VECTORS`) or of any.
#[derive(Clone, Copy, Debug)]
pub struct GatheredWords<const DOWN: usize, const ACROSS: usize, const VECTORS: bool>;

impl<const DOWN: usize, const ACROSS: usize, const VECTORS: bool>
    GatheredWords<DOWN, ACROSS, VECTORS>
{
    /// Rows.
    pub const ROWS: usize = 32 * DOWN;
    /// Bytes of a stage's rows of 32 channels.
    pub const GATHERED: usize = Self::ROWS * 32 * 4;
    /// Bytes of a stage: rows, then 32 channels of the matrix.
    pub const STAGE: usize = Self::GATHERED + 32 * Self::COLUMNS as usize * 4;
    /// Stages in flight.
    pub const STAGES: usize = if DOWN * ACROSS == 8 { 3 } else { 2 };
    /// Offset of the input rows of two offsets.
    pub const INDEX: usize = Self::STAGES * Self::STAGE;
    /// Offset of what each thread knows of the next offset: [`CONV_WORDS_NOTES`] bytes.
    pub const NOTES: usize = Self::INDEX + 2 * Self::ROWS * 4;
}

/// Bytes of shared memory for what a thread of `conv_simt` has no registers for.
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

/// What a thread block of a gradient of the weights sums up: some of the 64 positions that an offset has neighbours at.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ConvPart {
    /// The offset.
    pub offset: u32,
    /// The first in the list of positions.
    pub first: u32,
    /// How many times 64 positions.
    pub count: u32,
    /// Nothing: 16 bytes are one load.
    pub pad: u32,
}

const _: () = assert!(size_of::<ConvPart>() == 16);

impl ConvPart {
    /// As it lies in device memory.
    pub const fn words(self) -> [u32; 4] {
        [self.offset, self.first, self.count, self.pad]
    }

    /// Of its words.
    #[inline(always)]
    pub const fn of([offset, first, count, pad]: [u32; 4]) -> ConvPart {
        ConvPart { offset, first, count, pad }
    }
}

/// Parameters of the kernels `conv_mma`, `conv_simt`, `conv_grad` and `conv_pairs`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ConvWordsParams {
    /// What the other kernels walk; `input` the input, `out` the output, or the partial sums of the weights' gradient,
    /// whose `schedule` lists 64 positions, by their number, of one [`ConvPart`] behind the other.
    pub base: ConvParams,
    /// Weights `[t, c, m]`, or the gradient of the output.
    pub weights: u64,
    /// A [`ConvPart`] for each thread block of a gradient.
    pub parts: u64,
    /// Bytes from one row of the weights to the next.
    pub weights_bytes: u32,
    /// Channels of the input.
    pub channels: u32,
}

const _: () = assert!(size_of::<ConvWordsParams>() == 240);
