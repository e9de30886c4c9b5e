//! Thread blocks whose threads add up what is in front of each.

/// Threads of a thread block of every step.
pub const SCAN_THREADS: u32 = 256;
/// Shared memory of a running sum over a thread block: a word for each warp.
pub const SCAN_BYTES: u32 = SCAN_THREADS / 32 * 4;
