//! The steps around a convolution: kernel maps by a hash table of voxels, weights transposed, sums of a gradient's
//! parts.

use crate::abi::Tile;

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

/// The batch of a voxel that is none: it is in no table, and has no neighbours.
pub const CONV_NOWHERE: u32 = 1 << 31;

/// Weights `[t, r, c]` to `[t, c, r]`.
pub const CONV_TURN: u32 = 1;
/// Sums of parts of the weights' gradient, in order.
pub const CONV_SUM: u32 = 2;
/// Voxels into a hash table; of those at one place the first.
pub const CONV_INSERT: u32 = 3;
/// Neighbours of each output voxel, and its key.
pub const CONV_NEIGHBOURS: u32 = 4;
/// Neighbours and masks in order.
pub const CONV_ARRANGE: u32 = 5;
/// Keys of tiles: those with the most offsets first.
pub const CONV_SCHEDULE: u32 = 6;
/// Voxels of the output, not yet each once.
pub const CONV_STRIDE: u32 = 7;
/// 0 for the first voxel of a place, 1 for the others, and how many places there are.
pub const CONV_FIRST: u32 = 8;
/// Voxels through an order; behind the last there is none.
pub const CONV_TAKE: u32 = 9;
/// Neighbours of each input voxel.
pub const CONV_TRANSPOSE: u32 = 10;
/// Keys of neighbours.
pub const CONV_KEYS: u32 = 11;

/// Threads of a thread block of `conv_steps`.
pub const CONV_STEP_THREADS: u32 = 256;

/// One step, `CONV_*`.
#[derive(Clone, Copy, Debug)]
pub struct ConvStep<const STEP: u32>;

impl<const STEP: u32> Tile for ConvStep<STEP> {
    const THREADS: u32 = CONV_STEP_THREADS;
    const MIN_BLOCKS: u32 = 4;
    const COLUMNS: u32 = 1;
    const ITEMS: u32 = CONV_STEP_THREADS;
    const STEP: u32 = STEP;
    const SHARED_BYTES: u32 = if STEP == CONV_TURN { 32 * 33 * 4 } else { 0 };
    const ACCESS: u32 = 1;
}

/// Parameters of the `conv_steps` kernels: what a step reads and writes under one name stands at its constant.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ConvStepParams {
    /// Voxels of the input, or weights, or partial sums.
    pub source: u64,
    /// Voxels of the output, or transposed weights, or the gradient.
    pub out: u64,
    /// Hash table of positions, a power of two; the first part of each offset's sums, and the end of the last.
    pub table: u64,
    /// Offsets of the kernel, three words each, then the bit of each in the key.
    pub offsets: u64,
    /// Neighbours by offset and row, `rows` words a line.
    pub raw: u64,
    /// Keys of rows or tiles.
    pub keys: u64,
    /// Order of rows.
    pub order: u64,
    /// Neighbours by offset and position, `stride` words a line.
    pub neighbours: u64,
    /// Masks of 64 positions.
    pub masks: u64,
    /// How many places there are.
    pub count: u64,
    /// Rows that a step takes.
    pub rows: u32,
    /// Offsets.
    pub volume: u32,
    /// Slots of the table, less one.
    pub last: u32,
    /// Positions of the map, a multiple of 128.
    pub stride: u32,
    /// Words of a mask.
    pub words: u32,
    /// Strides along x, y, z; of weights: rows, columns, elements from one row to the next; of sums: elements of a
    /// matrix and of a row.
    pub strides: [u32; 3],
    /// Elements from one row of what is written to the next.
    pub leading: u32,
}

const _: () = assert!(size_of::<ConvStepParams>() == 120);
