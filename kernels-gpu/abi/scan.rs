//! Thread blocks that compute scans: for each thread the sum over the threads before it.

/// Threads of a thread block that scans.
pub const SCAN_THREADS: u32 = 256;
/// Shared memory of a scan over a thread block, bytes: a word for each warp.
pub const SCAN_BYTES: u32 = SCAN_THREADS / 32 * 4;
