//! The module `join`: pairs of rows with equal keys, counted and then written.

use crate::abi::{SCAN_BYTES, SCAN_THREADS, tiles};

/// Parameters of every `join` kernel. A key has two words, the high ones missing (0) where all are zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct JoinParams {
    /// Keys of the left rows, u64.
    pub left: u64,
    /// Ordered keys of the right rows, low words.
    pub right_low: u64,
    /// The high words, or 0.
    pub right_high: u64,
    /// Right rows in the order of their keys.
    pub right_rows: u64,
    /// For each left row the first place with its key among the ordered right rows.
    pub first: u64,
    /// For each left row first how many right ones it meets, then the pairs ahead of its own.
    pub starts: u64,
    /// For each thread block of left rows its pairs in two sums, of the low and the high 16 bits of the counts; then,
    /// in the first word, the pairs ahead of its own.
    pub sums: u64,
    /// Order keys of left rows, u64, or 0.
    pub left_order: u64,
    /// Order keys of right rows, u64, or 0.
    pub right_order: u64,
    /// Out: left row of each pair.
    pub out_left: u64,
    /// Out: right row of each pair.
    pub out_right: u64,
    /// Out: low words of the sums of the order keys, or 0.
    pub out_low: u64,
    /// Out: high words of the sums of the order keys, or 0.
    pub out_high: u64,
    /// Left rows.
    pub left_count: u32,
    /// Right rows.
    pub right_count: u32,
    /// Pairs.
    pub pairs: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<JoinParams>() == 120);

tiles! {
    { THREADS: SCAN_THREADS, MIN_BLOCKS: 6, COLUMNS: SCAN_THREADS, ITEMS: SCAN_THREADS, ACCESS: 1 }
    /// How many right rows each left row meets, and where they begin.
    JoinCount = STEP_JOIN_COUNT 121, SHARED_BYTES: SCAN_BYTES;
    /// The pairs ahead of each left row's.
    JoinStarts = STEP_JOIN_STARTS 122, SHARED_BYTES: SCAN_BYTES;
    /// The pairs, a thread each.
    JoinFill = STEP_JOIN_FILL 123;
}
