//! The kernels `channels`: finds the columns of each item of `[items][rows][columns]` with a nonzero in any row, and
//! packs their values row by row. Columns are the channels of an activation `[n,h,w,m]`, separately for each image, or
//! the filters of weights `[i,j,m,f]` (PIT, arXiv 2301.10936: channels are micro-tiles along m, filters along f).

use crate::abi::{Divisor, SCAN_BYTES, tiles};
use crate::families::discover::abi::{DETECT_PAD, DETECT_THREADS};

/// Max columns: one thread per word of marks.
pub const CHANNEL_COLUMNS: u32 = 32 * DETECT_THREADS;
/// Elements of a vector of 16 bytes.
pub const CHANNEL_VECTOR: u32 = 8;
/// Vectors in flight per thread while it marks.
pub const CHANNEL_LOADS: u32 = 8;
/// Max vectors of a row that a thread block marks, and words of marks for them.
pub const CHANNEL_WIDTH: u32 = 64;
/// See [`CHANNEL_WIDTH`].
pub const CHANNEL_WORDS: u32 = CHANNEL_WIDTH * CHANNEL_VECTOR / 32;

/// Offsets in shared memory while packing, after the memory of the scan: words of marks, number of marked columns
/// before each word, byte offsets of the listed columns in a row (two bytes each), and rows.
pub const CHANNEL_MARKS: u32 = SCAN_BYTES;
/// See [`CHANNEL_MARKS`].
pub const CHANNEL_RANKS: u32 = CHANNEL_MARKS + DETECT_THREADS * 4;
/// See [`CHANNEL_MARKS`].
pub const CHANNEL_LIST: u32 = CHANNEL_RANKS + DETECT_THREADS * 4;
/// See [`CHANNEL_MARKS`].
pub const CHANNEL_ROWS: u32 = CHANNEL_LIST + CHANNEL_COLUMNS * 2;
/// Bytes of the rows in shared memory: two of the longest ones, each followed by a vector of zeros.
pub const CHANNEL_ROOM: u32 = 2 * (CHANNEL_COLUMNS * 2 + 16);

const _: () = assert!(CHANNEL_COLUMNS.is_multiple_of(DETECT_PAD));
// The byte offset of the vector of zeros fits in 16 bits.
const _: () = assert!(CHANNEL_COLUMNS * 2 <= u16::MAX as u32);
// Four thread blocks per SM.
const _: () = assert!(4 * (CHANNEL_ROWS + CHANNEL_ROOM + 1024) <= 228 << 10);

tiles! {
    { THREADS: DETECT_THREADS, MIN_BLOCKS: 4, COLUMNS: CHANNEL_COLUMNS, ACCESS: 16 }
    /// Marks columns: a thread block has some rows of an item, and at most [`CHANNEL_WIDTH`] of their vectors.
    MarkChannels = STEP_MARK_CHANNELS 9, BURST: CHANNEL_LOADS, SHARED_BYTES: CHANNEL_WORDS * 4;
    /// Writes lists and values: a thread block has some rows of an item, and computes the whole list of the item
    /// itself.
    PackChannels = STEP_PACK_CHANNELS 10, SHARED_BYTES: CHANNEL_ROWS + CHANNEL_ROOM;
}

/// Parameters of the `channels` kernels. The grid is (rows and their parts) x items.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ChannelsParams {
    /// The items, contiguous; rows aligned to 16 bytes.
    pub source: u64,
    /// Bytes from one row to the next, a multiple of 16.
    pub row_bytes: u64,
    /// Marks of each item, `words` words with a bit per column; zero between runs.
    pub marks: u64,
    /// Number of thread blocks that have read each item's marks, 8 bytes each; zero between launches.
    pub counters: u64,
    /// Out: for each item its nonempty columns, ascending, `stride` words; padded to a multiple of [`DETECT_PAD`].
    pub lists: u64,
    /// Out: number of nonempty columns of each item.
    pub counts: u64,
    /// Out: values of the listed columns, rows of `stride` elements; zeros up to a multiple of [`DETECT_PAD`].
    pub packed: u64,
    /// Vectors of a row per thread block that marks, a multiple of four if a row has several parts.
    pub width: Divisor,
    /// Parts of a row.
    pub across: Divisor,
    /// Vectors per row.
    pub vectors: Divisor,
    /// Rows per item.
    pub rows: u32,
    /// Elements per row.
    pub columns: u32,
    /// Words of marks per item.
    pub words: u32,
    /// Elements of a packed row and words of a list, a multiple of [`DETECT_PAD`].
    pub stride: u32,
    /// Rows per thread block.
    pub block_rows: u32,
    /// Rows per step of a thread block: rows that its threads mark at once, or rows in shared memory.
    pub step: u32,
    /// Number of thread blocks that pack an item.
    pub parts: u32,
    /// Added to a magnitude: sets the top bit of the element if the magnitude is above the threshold.
    pub above: u32,
}

const _: () = assert!(size_of::<ChannelsParams>() == 112);
