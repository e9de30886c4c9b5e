//! The module `channels`: which columns of each item of `[items][rows][columns]` hold something in any row, and the
//! values of these columns, row by row: the channels of an activation `[n,h,w,m]`, of each image its own, or the
//! filters of weights `[i,j,m,f]` (PIT, arXiv 2301.10936: channels are micro-tiles along m, filters along f).

use crate::abi::{Divisor, tiles};
use crate::families::discover::abi::{DETECT_PAD, DETECT_THREADS};

/// Columns at the most: a thread for each word of marks.
pub const CHANNEL_COLUMNS: u32 = 32 * DETECT_THREADS;
/// Elements of a vector of 16 bytes.
pub const CHANNEL_VECTOR: u32 = 8;
/// Vectors that a thread has in flight while it marks.
pub const CHANNEL_LOADS: u32 = 8;
/// Vectors of a row that a thread block marks, at the most, and words of marks of as many.
pub const CHANNEL_WIDTH: u32 = 64;
/// See [`CHANNEL_WIDTH`].
pub const CHANNEL_WORDS: u32 = CHANNEL_WIDTH * CHANNEL_VECTOR / 32;

/// Offsets in shared memory while packing: words of marks, then how many columns are marked in front of each word, sums
/// of the warps, places of the listed columns in a row, two bytes each, and rows.
pub const CHANNEL_RANKS: u32 = DETECT_THREADS * 4;
/// See [`CHANNEL_RANKS`].
pub const CHANNEL_SUMS: u32 = 2 * DETECT_THREADS * 4;
/// See [`CHANNEL_RANKS`].
pub const CHANNEL_LIST: u32 = CHANNEL_SUMS + 64;
/// See [`CHANNEL_RANKS`].
pub const CHANNEL_ROWS: u32 = CHANNEL_LIST + CHANNEL_COLUMNS * 2;
/// Bytes of rows at a time: two of the longest ones, with a vector of zeros behind each.
pub const CHANNEL_ROOM: u32 = 2 * (CHANNEL_COLUMNS * 2 + 16);

const _: () = assert!(CHANNEL_COLUMNS.is_multiple_of(DETECT_PAD));
// The vector of zeros has a place that two bytes hold.
const _: () = assert!(CHANNEL_COLUMNS * 2 <= u16::MAX as u32);
// Four thread blocks on a multiprocessor.
const _: () = assert!(4 * (CHANNEL_ROWS + CHANNEL_ROOM + 1024) <= 228 << 10);

tiles! {
    { THREADS: DETECT_THREADS, MIN_BLOCKS: 4, COLUMNS: CHANNEL_COLUMNS, ACCESS: 16 }
    /// Marks columns: a thread block for some rows of at most [`CHANNEL_WIDTH`] vectors of an item.
    MarkChannels = STEP_MARK_CHANNELS 9, BURST: CHANNEL_LOADS, SHARED_BYTES: CHANNEL_WORDS * 4;
    /// Lists and values: a thread block for some rows of an item, each of which makes the list for itself.
    PackChannels = STEP_PACK_CHANNELS 10, SHARED_BYTES: CHANNEL_ROWS + CHANNEL_ROOM;
}

/// Parameters of the `channels` kernels. The grid is rows (and their parts) by items.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ChannelsParams {
    /// The items, one behind the other; rows aligned to 16 bytes.
    pub source: u64,
    /// Bytes from one row to the next, a multiple of 16.
    pub row_bytes: u64,
    /// Marks of each item, `words` words with a bit for each column; zero between runs.
    pub marks: u64,
    /// Thread blocks of each item that have read its marks, 8 bytes each; zero between launches.
    pub counters: u64,
    /// Out: for each item the columns that hold something, ascending, `stride` words; filled up to a multiple of
    /// [`DETECT_PAD`].
    pub lists: u64,
    /// Out: how many they are.
    pub counts: u64,
    /// Out: their values, rows of `stride` elements; zeros up to a multiple of [`DETECT_PAD`].
    pub packed: u64,
    /// Vectors of a row that a thread block marks, a multiple of four where there are several parts.
    pub width: Divisor,
    /// Such parts of a row.
    pub across: Divisor,
    /// Vectors of a row.
    pub vectors: Divisor,
    /// Rows of an item.
    pub rows: u32,
    /// Elements of a row.
    pub columns: u32,
    /// Words of marks of an item.
    pub words: u32,
    /// Elements of a packed row and places of a list, a multiple of [`DETECT_PAD`].
    pub stride: u32,
    /// Rows that a thread block takes.
    pub block_rows: u32,
    /// Of those, rows at a time: that its threads mark side by side, or that are in shared memory.
    pub step: u32,
    /// Thread blocks of an item that pack.
    pub parts: u32,
    /// What makes the top bit of an element whose magnitude is above the threshold.
    pub above: u32,
}

const _: () = assert!(size_of::<ChannelsParams>() == 112);
