//! The kernels `join`: pairs of rows with equal keys, counted and then written.

use crate::abi::{SCAN_BYTES, SCAN_THREADS, tiles};

/// Parameters of every `join` kernel. A key has two words; the high words are absent (address 0) if all are zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct JoinParams {
    /// Keys of the left rows, u64.
    pub left: u64,
    /// Sorted keys of the right rows, low words.
    pub right_low: u64,
    /// Sorted keys of the right rows, high words, or 0.
    pub right_high: u64,
    /// Right rows in key order.
    pub right_rows: u64,
    /// For each left row the index of the first sorted right row with its key.
    pub first: u64,
    /// For each left row: first its number of matching right rows, then the number of pairs before its own.
    pub starts: u64,
    /// For each thread block of left rows two sums of its pair counts: of their low and of their high 16 bits. Later
    /// the first word is the number of pairs before its own.
    pub sums: u64,
    /// Output order keys of left rows, u64, or 0.
    pub left_order: u64,
    /// Output order keys of right rows, u64, or 0.
    pub right_order: u64,
    /// Out: left row of each pair.
    pub out_left: u64,
    /// Out: right row of each pair.
    pub out_right: u64,
    /// Out: low words of the sums of the order keys, or 0.
    pub out_low: u64,
    /// Out: high words of the sums of the order keys, or 0.
    pub out_high: u64,
    /// Number of left rows.
    pub left_count: u32,
    /// Number of right rows.
    pub right_count: u32,
    /// Number of pairs.
    pub pairs: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<JoinParams>() == 120);

tiles! {
    { THREADS: SCAN_THREADS, MIN_BLOCKS: 6, COLUMNS: SCAN_THREADS, ITEMS: SCAN_THREADS, ACCESS: 1 }
    /// Number of matching right rows of each left row, and the first of them.
    JoinCount = STEP_JOIN_COUNT 121, SHARED_BYTES: SCAN_BYTES;
    /// Number of pairs before those of each left row.
    JoinStarts = STEP_JOIN_STARTS 122, SHARED_BYTES: SCAN_BYTES;
    /// The pairs, one thread each.
    JoinFill = STEP_JOIN_FILL 123;
}
