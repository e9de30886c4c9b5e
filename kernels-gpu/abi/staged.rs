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

/// Columns of C of a thread block, f32: a row of B in shared memory.
pub const STAGED_COLUMNS: u32 = STAGED_ROW as u32 / 4;

/// Tile of the family: `WARPS` warps multiply, one more copies; `PARTS` of them share the chunks of a slice.
#[derive(Clone, Copy, Debug)]
pub struct Staged<const WARPS: u32, const PARTS: u32>;

impl<const WARPS: u32, const PARTS: u32> Staged<WARPS, PARTS> {
    /// Offset of the row of zeros.
    pub const ZEROS: usize = RING_ROWS * STAGED_ROW;
    /// Offset of the barriers: full and empty of each tile.
    pub const BARRIERS: usize = Self::ZEROS + STAGED_ROW;
}

impl<const WARPS: u32, const PARTS: u32> Tile for Staged<WARPS, PARTS> {
    const THREADS: u32 = (WARPS + 1) * 32;
    const MIN_BLOCKS: u32 = 1;
    const COLUMNS: u32 = STAGED_COLUMNS;
    const ITEMS: u32 = WARPS / PARTS;
    const PARTS: u32 = PARTS;
    const BURST: u32 = CHUNK_STEPS as u32;
    const BLOCK: (u32, u32) = (1, 1);
    fn shared_bytes(_: Dtype) -> u32 {
        (Self::BARRIERS + RING * 16) as u32
    }
    /// The copy engine wants 16-byte addresses and strides.
    fn vector(dtype: Dtype) -> u32 {
        16 / dtype.bytes() as u32
    }
}

/// Tile for a B whose rows fit shared memory all at once: `WARPS` warps walk the pieces of slices that a [`StagedPiece`] names.
#[derive(Clone, Copy, Debug)]
pub struct Resident<const WARPS: u32>;

/// Rows of a slice that a warp turns at once on the way to C.
pub const TURNED_ROWS: usize = 8;

impl<const WARPS: u32> Resident<WARPS> {
    /// Bytes of the sums of a row.
    pub const SUMS: usize = STAGED_ROW;
    /// Bytes of the sums of a slice.
    pub const SLICE_SUMS: usize = SLICE * Self::SUMS;
    /// Bytes of the rows that a warp turns.
    pub const TURNED: usize = TURNED_ROWS * Self::SUMS;
    /// Tiles of B.
    pub const TILES: usize =
        (RING * STAGED_TILE - WARPS as usize * (Self::SLICE_SUMS + Self::TURNED)) / STAGED_TILE;
    /// Offset of the row of zeros.
    pub const ZEROS: usize = Self::TILES * STAGED_TILE;
    /// Offset of the barriers of the tiles.
    pub const BARRIERS: usize = Self::ZEROS + STAGED_ROW;
    /// Offset of what warps turn.
    pub const TURNS: usize = (Self::BARRIERS + Self::TILES * 8).next_multiple_of(2 * STAGED_ROW);
    /// Offset of the sums of slices that a warp ended and another began. Those that others go on with take the place of B.
    pub const ENDS: usize = Self::TURNS + WARPS as usize * Self::TURNED;
    /// Bytes in all.
    pub const BYTES: usize = Self::ENDS + WARPS as usize * Self::SLICE_SUMS;
}

impl<const WARPS: u32> Tile for Resident<WARPS> {
    const THREADS: u32 = WARPS * 32;
    const MIN_BLOCKS: u32 = 1;
    const COLUMNS: u32 = STAGED_COLUMNS;
    const ITEMS: u32 = WARPS;
    const PARTS: u32 = 1;
    const BURST: u32 = CHUNK_STEPS as u32;
    const BLOCK: (u32, u32) = (1, 1);
    const DEPTH: u32 = (Self::TILES * K_TILE) as u32;
    fn shared_bytes(_: Dtype) -> u32 {
        const { assert!(WARPS as usize * Self::SLICE_SUMS <= Self::ZEROS) };
        Self::BYTES as u32
    }
    /// The copy engine wants 16-byte addresses and strides.
    fn vector(dtype: Dtype) -> u32 {
        16 / dtype.bytes() as u32
    }
}

/// Chunks of one slice that a warp takes: `first .. end`. Where these are not all of them, the sums meet those of others.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagedPiece {
    /// First chunk.
    pub first: u32,
    /// One past the last.
    pub end: u32,
    /// The slice.
    pub slice: u32,
    /// `PIECE_*`.
    pub kind: u32,
}

/// A piece that is all of its slice.
pub const PIECE_WHOLE: u32 = 0;
/// A piece that others go on with, or the last of its warp.
pub const PIECE_OPEN: u32 = 1;
/// The end of a slice that others began, and not the last of its warp.
pub const PIECE_END: u32 = 2;

/// A slice whose sums are with `count` warps from `warp` on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagedJoin {
    /// The slice.
    pub slice: u32,
    /// The warp that begins it.
    pub warp: u32,
    /// Warps that have a part of it.
    pub count: u32,
    /// 1 where the last of them has it as a [`PIECE_END`].
    pub end: u32,
}

const _: () = assert!(size_of::<StagedPiece>() == 16);
const _: () = assert!(size_of::<StagedJoin>() == 16);

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
    /// [`Resident`]: [`StagedPiece`]s, first that which each warp of each group begins with, then the others.
    pub pieces: u64,
    /// [`Resident`]: first and number of each warp's other pieces, u32 each.
    pub others: u64,
    /// [`Resident`]: first and number of each group's joins, u32 each.
    pub spans: u64,
    /// [`Resident`]: [`StagedJoin`]s.
    pub joins: u64,
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

const _: () = assert!(size_of::<StagedParams>() == 248);
