//! Rows of sequences of varying lengths, one after the other.

use crate::device::gpu;
use crate::device::memory::{Access, Global};
use crate::device::scan::sum;
use crate::device::strided::strided;
use crate::families::discover::abi::DETECT_THREADS;

/// Number of rows of the sequences before sequence `own`, and of sequence `own`. Lengths are clamped to 0 and `most`.
/// Every thread of the thread block must call it, and only once.
#[inline(always)]
pub fn rows_before<A: Access>(
    lengths: Global<u32, A>,
    count: u32,
    most: u32,
    own: u32,
) -> (u32, u32) {
    let length = |i: u32| {
        let length = lengths.at(i).ld_if(i < count) as i32;
        (length.max(0) as u32).min(most)
    };
    let mut before = 0;
    strided(gpu::thread(), own, DETECT_THREADS, |i| before += length(i));
    (sum(before), length(own))
}
