//! Module `conv_steps`: steps before and after a convolution. They build kernel maps with a hash table of voxels,
//! transpose weights and sum the parts of a gradient.

use crate::abi::Tile;

/// Returns the hash of a voxel, where its search in the table begins: each coordinate times an odd number, mixed by the
/// finaliser of MurmurHash3.
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

/// Returns the number of words before `code` in the reflected Gray code.
#[inline(always)]
pub const fn gray_rank(code: u32) -> u32 {
    let mut rank = code ^ code >> 1;
    rank ^= rank >> 2;
    rank ^= rank >> 4;
    rank ^= rank >> 8;
    rank ^ rank >> 16
}

/// Batch of a padding voxel, which is in no table and without neighbours.
pub const CONV_NOWHERE: u32 = 1 << 31;

/// Transposes weights `[t, r, c]` to `[t, c, r]`.
pub const CONV_TURN: u32 = 1;
/// Sums the parts of the weights' gradient, in order.
pub const CONV_SUM: u32 = 2;
/// Inserts voxels into a hash table; of voxels at one position the first is kept.
pub const CONV_INSERT: u32 = 3;
/// Finds the neighbours of each output voxel, and its key.
pub const CONV_NEIGHBOURS: u32 = 4;
/// Writes neighbours and masks in sorted order.
pub const CONV_ARRANGE: u32 = 5;
/// Writes the keys of tiles; tiles with the most offsets come first.
pub const CONV_SCHEDULE: u32 = 6;
/// Writes the output voxel of each input voxel, with duplicates.
pub const CONV_STRIDE: u32 = 7;
/// Writes 0 for the first voxel of a position and 1 for the others, and counts the positions.
pub const CONV_FIRST: u32 = 8;
/// Permutes voxels by an order, and pads after the last one.
pub const CONV_TAKE: u32 = 9;
/// Finds the neighbours of each input voxel.
pub const CONV_TRANSPOSE: u32 = 10;
/// Writes the keys of rows from stored neighbours.
pub const CONV_KEYS: u32 = 11;

/// Threads of a thread block of `conv_steps`.
pub const CONV_STEP_THREADS: u32 = 256;

/// Tile of one step, `CONV_*`.
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

/// Parameters of the `conv_steps` kernels. A field can have another meaning in another step, see the `CONV_*`
/// constants.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ConvStepParams {
    /// Voxels of the input, or weights, or partial sums.
    pub source: u64,
    /// Voxels of the output, or transposed weights, or the gradient.
    pub out: u64,
    /// Hash table of positions, a power of two of slots. For sums: the first part of each offset, then the end of the
    /// last.
    pub table: u64,
    /// Kernel offsets, three words each, then the key bit of each.
    pub offsets: u64,
    /// Neighbours by offset and row, `rows` words for each offset.
    pub raw: u64,
    /// Keys of rows or tiles.
    pub keys: u64,
    /// Order of rows.
    pub order: u64,
    /// Neighbours by offset and position, `stride` words for each offset.
    pub neighbours: u64,
    /// Masks of blocks of 64 positions.
    pub masks: u64,
    /// Number of distinct positions.
    pub count: u64,
    /// Rows (or other items) of the step.
    pub rows: u32,
    /// Number of kernel offsets.
    pub volume: u32,
    /// Slots of the table minus one.
    pub last: u32,
    /// Positions of the map, a multiple of 128.
    pub stride: u32,
    /// Words of a mask.
    pub words: u32,
    /// Strides along x, y, z. For weights: rows, columns, elements from one row to the next. For sums: elements of a
    /// matrix and of a row.
    pub strides: [u32; 3],
    /// Elements from one row of the output to the next.
    pub leading: u32,
}

const _: () = assert!(size_of::<ConvStepParams>() == 120);
