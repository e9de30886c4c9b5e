//! The `staged` family: SpMM with rows of B in shared memory, over slices of rows of A.

use super::{Dtype, MapWords, Tile};

/// Rows of A in a slice: one for each lane of a warp.
pub const SLICE: usize = 32;
/// Entries of a row in a chunk.
pub const CHUNK_STEPS: usize = 4;
/// Slots of a chunk.
pub const CHUNK_SLOTS: usize = SLICE * CHUNK_STEPS;
/// Rows of B in a tile, which arrives as a whole.
pub const K_TILE: usize = 64;
/// Bytes of a row of B in shared memory: all its banks once.
pub const STAGED_ROW: usize = 128;
/// Bytes of a tile.
pub const STAGED_TILE: usize = K_TILE * STAGED_ROW;
/// Tiles that shared memory holds.
pub const RING: usize = 28;
/// Rows of B that shared memory holds. Behind them lies a row of zeros, which padding reads.
pub const RING_ROWS: usize = RING * K_TILE;
/// A slot's local column where there is no entry.
pub const NO_ENTRY: u32 = 0xffff;
/// Set in a slice's row number where the row has no entries; no row is [`u32::MAX`].
pub const EMPTY_ROW: u32 = 1 << 31;

/// Tile of the family: `WARPS` warps multiply, one more copies; `PARTS` of them share the chunks of a slice. `CLUSTER`
/// thread blocks share the copies of B; a row of B in shared memory is `WIDTH` columns.
#[derive(Clone, Copy, Debug)]
pub struct Staged<
    const WARPS: u32,
    const PARTS: u32,
    const CLUSTER: u32 = 1,
    const WIDTH: u32 = 32,
>;

impl<const WARPS: u32, const PARTS: u32, const CLUSTER: u32, const WIDTH: u32>
    Staged<WARPS, PARTS, CLUSTER, WIDTH>
{
    /// Offset of the row of zeros.
    pub const ZEROS: usize = RING_ROWS * STAGED_ROW;
    /// Offset of the barriers: full and empty of each tile.
    pub const BARRIERS: usize = Self::ZEROS + STAGED_ROW;
}

impl<const WARPS: u32, const PARTS: u32, const CLUSTER: u32, const WIDTH: u32> Tile
    for Staged<WARPS, PARTS, CLUSTER, WIDTH>
{
    const THREADS: u32 = (WARPS + 1) * 32;
    const MIN_BLOCKS: u32 = 1;
    const COLUMNS: u32 = WIDTH;
    const ITEMS: u32 = WARPS / PARTS;
    const PARTS: u32 = PARTS;
    const BURST: u32 = CHUNK_STEPS as u32;
    const BLOCK: (u32, u32) = (1, 1);
    const CLUSTER: u32 = CLUSTER;
    fn shared_bytes(_: Dtype) -> u32 {
        (Self::BARRIERS + RING * 16) as u32
    }
    /// The copy engine wants 16-byte addresses and strides.
    fn vector(dtype: Dtype) -> u32 {
        16 / dtype.bytes() as u32
    }
}

/// Parameters of the `staged` kernels: `C[m,n] = epilogue(alpha * A[m,k] * B[k,n])`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StagedParams {
    /// B, in tiles of [`K_TILE`] rows.
    pub b_map: MapWords,
    /// First chunk of each slice, u32, one more than slices.
    pub offsets: u64,
    /// First tile that each chunk needs, and one past the last, u32 each.
    pub windows: u64,
    /// Row of C of every lane of each slice, u32; [`EMPTY_ROW`] set for one without entries, `u32::MAX` for none.
    pub rows: u64,
    /// Local columns, u16, `[chunks, 32, 4]`.
    pub columns: u64,
    /// Values, `[chunks, 32, 4]`.
    pub values: u64,
    /// C, row-major.
    pub c: u64,
    /// Bias vector, or 0.
    pub bias: u64,
    /// Scalar factor of the product.
    pub alpha: f64,
    /// Slices.
    pub slices: u32,
    /// Tiles of B along k.
    pub tiles: u32,
    /// Columns of B and C.
    pub n: u32,
    /// Bytes from one row of C to the next.
    pub ldc_bytes: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<StagedParams>() == 216);
