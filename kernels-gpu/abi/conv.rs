//! The `conv` family: gather-GEMM-scatter, stationary in the output. A thread block owns 128 rows of the output and a
//! tile of columns, walks the offsets that any of its rows has a neighbour at, gathers the neighbours' rows and multiplies
//! them with the offset's matrix: `Out[o,m] = sum over t, c of In[neighbour(t,o),c] * W[t,c,m]`.

use super::{B_COLUMNS, Dtype, MapWords, SLAB, Tile};

/// Rows of the output of a thread block.
pub const CONV_ROWS: usize = 128;
/// Rows that one mask speaks of: those of a warpgroup.
pub const CONV_HALF: usize = 64;
/// Threads that gather, two warps: with four, two thread blocks of 64 sums a thread have not the registers.
pub const CONV_COPIERS: u32 = 64;
/// A neighbour that is not there; an output row behind the last.
pub const CONV_ABSENT: u32 = u32::MAX;

/// Tile of `conv`: 128 rows by `CHUNKS` x 64 columns of elements of `BYTES` bytes; [`B_COLUMNS`]: the matrices lie as
/// `[t, m, c]`.
#[derive(Clone, Copy, Debug)]
pub struct Gathered<const CHUNKS: usize, const ORDER: u32, const BYTES: usize = 2>;

impl<const CHUNKS: usize, const ORDER: u32, const BYTES: usize> Gathered<CHUNKS, ORDER, BYTES> {
    /// Channels of a stage, 128 bytes.
    pub const DEPTH: usize = 128 / BYTES;
    /// Bytes of a stage's part of the matrix.
    pub const PANEL: usize = CHUNKS * SLAB;
    /// Bytes of a stage: rows of the input, then the matrix.
    pub const STAGE: usize = 2 * SLAB + Self::PANEL;
    /// Whether a thread block has the multiprocessor to itself: fragments of A beside 64 sums do not fit otherwise.
    pub const ALONE: bool = BYTES == 4 && CHUNKS > 1;
    /// Stages in flight: two thread blocks share a multiprocessor.
    pub const STAGES: usize = match (CHUNKS, Self::ALONE) {
        (_, true) => 6,
        (1, _) => 4,
        _ => 3,
    };
    /// Offset of the output buffers, [`SLAB`] bytes of each warpgroup; results of 4 bytes need none.
    pub const OUT: usize = Self::STAGES * Self::STAGE;
    /// Offset of the barriers: full and empty of each stage.
    pub const BARRIERS: usize = Self::OUT + if BYTES == 2 { 2 * SLAB } else { 0 };
}

impl<const CHUNKS: usize, const ORDER: u32, const BYTES: usize> Tile
    for Gathered<CHUNKS, ORDER, BYTES>
{
    const THREADS: u32 = 256 + CONV_COPIERS;
    const MIN_BLOCKS: u32 = if Self::ALONE { 1 } else { 2 };
    const COLUMNS: u32 = 64 * CHUNKS as u32;
    const ITEMS: u32 = CONV_ROWS as u32;
    const PARTS: u32 = 1;
    const BURST: u32 = Self::STAGES as u32;
    const BLOCK: (u32, u32) = (CONV_ROWS as u32, Self::DEPTH as u32);
    const ORDER: u32 = ORDER;
    fn shared_bytes(_: Dtype) -> u32 {
        (Self::BARRIERS + Self::STAGES * 16) as u32
    }
    /// Copies of 16 bytes of a row, and the copy engine's strides.
    fn vector(dtype: Dtype) -> u32 {
        16 / dtype.bytes() as u32
    }
}

const _: () = assert!(Gathered::<2, B_COLUMNS, 2>::BARRIERS + 48 <= 115_712);

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
    /// Tiles of 128 positions in the order they are taken in.
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

/// Where the search for a voxel in a hash table begins: each coordinate times an odd number, mixed (the finaliser of
/// MurmurHash3).
#[inline(always)]
pub const fn voxel_hash(voxel: [u32; 4]) -> u32 {
    let mut h = voxel[0].wrapping_mul(0x9e37_79b1)
        ^ voxel[1].wrapping_mul(0x85eb_ca77)
        ^ voxel[2].wrapping_mul(0xc2b2_ae3d)
        ^ voxel[3].wrapping_mul(0x27d4_eb2f);
    h ^= h >> 16;
    h = h.wrapping_mul(0x85eb_ca6b);
    h ^= h >> 13;
    h = h.wrapping_mul(0xc2b2_ae35);
    h ^ h >> 16
}

/// How many words of a reflected Gray code come before this one.
#[inline(always)]
pub const fn gray_rank(code: u32) -> u32 {
    let mut rank = code ^ code >> 1;
    rank ^= rank >> 2;
    rank ^= rank >> 4;
    rank ^= rank >> 8;
    rank ^ rank >> 16
}
