//! The module `staged`: SpMM with rows of B in shared memory, over slices of rows of A.

use crate::abi::{CLUSTER, MapWords, TMA, Tile};

/// Rows of A in a slice, one for each lane of a warp.
pub const SLICE: usize = 32;
/// Entries of a row in a chunk.
pub const CHUNK_STEPS: usize = 4;
/// Slots of a chunk.
pub const CHUNK_SLOTS: usize = SLICE * CHUNK_STEPS;
/// Rows of B in a tile, which is copied as a unit.
pub const K_TILE: usize = 64;
/// Bytes of a row of B in shared memory: every bank once.
pub const STAGED_ROW: u32 = 128;
/// Bytes of a tile.
pub const STAGED_TILE: u32 = K_TILE as u32 * STAGED_ROW;
/// Number of tiles that shared memory holds.
pub const RING: u32 = 28;
/// Rows of B that shared memory holds. A row of zeros follows them, which padding reads.
pub const RING_ROWS: u32 = RING * K_TILE as u32;
/// Local column of a slot without an entry.
pub const NO_ENTRY: u32 = 0xffff;
/// Low bits of a window: the number of tiles that the chunk needs. The bits above hold the first tile.
pub const WINDOW_BITS: u32 = 5;
/// Set in the row number if the row has no entries. [`u32::MAX`] means that the lane has no row.
pub const EMPTY_ROW: u32 = 1 << 31;

/// Columns of C of a thread block, f32: a row of B in shared memory.
pub const STAGED_COLUMNS: u32 = STAGED_ROW / 4;
/// Bytes of the sums of a slice.
pub const SLICE_SUMS: u32 = SLICE as u32 * STAGED_ROW;

/// Tile of the module: `WARPS` warps multiply, one more copies. `PARTS` of them share the chunks of a slice.
#[derive(Clone, Copy, Debug)]
pub struct Staged<const WARPS: u32, const PARTS: u32>;

impl<const WARPS: u32, const PARTS: u32> Staged<WARPS, PARTS> {
    /// Offset of the row of zeros.
    pub const ZEROS: u32 = RING_ROWS * STAGED_ROW;
    /// Offset of the row numbers of the slices.
    pub const ROWS: u32 = Self::ZEROS + STAGED_ROW;
    /// Offset of the barriers: full and empty for each tile.
    pub const BARRIERS: u32 = Self::ROWS + WARPS / PARTS * SLICE as u32 * 4;
}

impl<const WARPS: u32, const PARTS: u32> Tile for Staged<WARPS, PARTS> {
    const THREADS: u32 = (WARPS + 1) * 32;
    const NEEDS: u32 = TMA;
    const COLUMNS: u32 = STAGED_COLUMNS;
    const ITEMS: u32 = WARPS / PARTS;
    const PARTS: u32 = PARTS;
    const BURST: u32 = CHUNK_STEPS as u32;
    const SHARED_BYTES: u32 = Self::BARRIERS + RING * 16;
    const ACCESS: u32 = 16;
}

/// Tile for a B whose rows fit in shared memory all at once. `WARPS` warps process the pieces of slices that
/// [`StagedPiece`]s list.
#[derive(Clone, Copy, Debug)]
pub struct Resident<const WARPS: u32>;

impl<const WARPS: u32> Resident<WARPS> {
    /// Max joins of a thread block: between its warps, and at both ends.
    pub const MAX_JOINS: u32 = WARPS + 1;
    /// Bytes of shared memory that do not hold B.
    const REST: u32 = STAGED_ROW
        + WARPS * (SLICE_SUMS + 2 * Self::PIECE)
        + Self::MAX_JOINS * size_of::<StagedJoin>() as u32
        + size_of::<StagedSpan>() as u32;
    /// Number of tiles of B.
    pub const TILES: u32 = (227 * 1024 - Self::REST) / (STAGED_TILE + 8);
    /// Offset of the row of zeros.
    pub const ZEROS: u32 = Self::TILES * STAGED_TILE;
    /// Offset of a slice of sums for each warp: of a slice on its way to C, or of a slice that the warp ends and
    /// another warp began. Sums that other warps continue are stored over B.
    pub const ENDS: u32 = Self::ZEROS + STAGED_ROW;
    /// Bytes that a piece needs next to its chunks: its row numbers, and the next piece.
    pub const PIECE: u32 = SLICE as u32 * 4 + size_of::<StagedPiece>() as u32;
    /// Offset of these bytes, two buffers for each warp.
    pub const BESIDE: u32 = Self::ENDS + WARPS * SLICE_SUMS;
    /// Offset of the joins.
    pub const JOINS: u32 = Self::BESIDE + WARPS * 2 * Self::PIECE;
    /// Offset of the thread block's [`StagedSpan`].
    pub const SPAN: u32 = Self::JOINS + Self::MAX_JOINS * size_of::<StagedJoin>() as u32;
    /// Offset of the barriers of the tiles.
    pub const BARRIERS: u32 = Self::SPAN + size_of::<StagedSpan>() as u32;
    /// Bytes of shared memory in total.
    pub const BYTES: u32 = Self::BARRIERS + Self::TILES * 8;
}

impl<const WARPS: u32> Tile for Resident<WARPS> {
    const THREADS: u32 = WARPS * 32;
    const NEEDS: u32 = TMA | CLUSTER;
    const COLUMNS: u32 = STAGED_COLUMNS;
    const ITEMS: u32 = WARPS;
    const BURST: u32 = CHUNK_STEPS as u32;
    const DEPTH: u32 = Self::TILES * K_TILE as u32;
    const SHARED_BYTES: u32 = {
        assert!((WARPS + 2) * SLICE_SUMS <= Self::ZEROS);
        assert!(WARPS >= SLICE as u32 / 2 && Self::BYTES <= 227 * 1024);
        Self::BYTES
    };
    const ACCESS: u32 = 16;
}

/// Chunks `first .. end` of one slice, processed by one warp. If they are not all chunks of the slice, the sums are
/// joined with those of other warps.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagedPiece {
    /// First chunk.
    pub first: u32,
    /// One past the last.
    pub end: u32,
    /// Slice index.
    pub slice: u32,
    /// `PIECE_*`.
    pub kind: u32,
}

/// Kind of a piece that covers its slice.
pub const PIECE_WHOLE: u32 = 0;
/// Kind of a part of a slice that other warps continue, or that is the last piece of its warp.
pub const PIECE_OPEN: u32 = 1;
/// Kind of the end of a slice that other warps began, where the warp has an open piece too. Whole pieces precede both.
pub const PIECE_END: u32 = 2;

/// For one thread block: a slice whose sums are in several of its warps, or in several thread blocks of a cluster.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StagedJoin {
    /// First warp of this thread block that has a part.
    pub warp: u32,
    /// Number of warps of this thread block that have a part.
    pub count: u32,
    /// 1 if the last of these warps has its part as a [`PIECE_END`].
    pub end: u32,
    /// Padding: aligns `rows` to 16 bytes.
    pub reserved: u32,
    /// Rows of C, as in [`StagedParams::rows`].
    pub rows: [u32; SLICE],
}

/// Max thread blocks of a cluster.
pub const MAX_CLUSTER: usize = 8;

/// Bytes of a join before its rows.
pub const JOIN_HEAD: u32 = 16;

/// Joins of a thread block.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct StagedSpan {
    /// First join.
    pub first: u32,
    /// Number of joins.
    pub count: u32,
    /// The slice that began in an earlier thread block of the cluster, and the one that later thread blocks continue.
    /// Each word holds the first of these thread blocks, their number in bits 8 to 15, and the index of this one among
    /// them from bit 16 on; 0 if there is no such slice.
    pub crossing: [u32; 2],
}

const _: () = assert!(size_of::<StagedPiece>() == 16);
const _: () = assert!(size_of::<StagedJoin>() == JOIN_HEAD as usize + 4 * SLICE);
const _: () = assert!(size_of::<StagedSpan>() == 16);

/// Parameters of the `staged` kernels: `C[m,n] = epilogue(alpha * A[m,k] * B[k,n])`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StagedParams {
    /// B, in tiles of [`K_TILE`] rows.
    pub b_map: MapWords,
    /// First chunk of each slice, u32; one entry more than slices.
    pub offsets: u64,
    /// First tile that each chunk needs and, in the low [`WINDOW_BITS`], the number of tiles, u32.
    pub windows: u64,
    /// Row of C of every lane of each slice, u32. [`EMPTY_ROW`] is set if it has no entries; `u32::MAX` if there is no
    /// row.
    pub rows: u64,
    /// Local columns, u16, `[chunks, 32, 4]`.
    pub columns: u64,
    /// Values, `[chunks, 32, 4]`.
    pub values: u64,
    /// C, row-major.
    pub c: u64,
    /// Bias vector, or 0.
    pub bias: u64,
    /// [`Resident`]: [`StagedPiece`]s, first the initial piece of each warp of each group, then the others.
    pub pieces: u64,
    /// [`Resident`]: index of the first of each warp's other pieces, and one past the last, u32 each.
    pub others: u64,
    /// [`Resident`]: [`StagedSpan`] of each thread block.
    pub spans: u64,
    /// [`Resident`]: [`StagedJoin`]s.
    pub joins: u64,
    /// Scalar factor of the product.
    pub alpha: f64,
    /// Number of slices.
    pub slices: u32,
    /// Number of tiles of B along k.
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
