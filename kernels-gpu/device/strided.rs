//! Loops of threads over more items than threads.

use super::gpu;
use super::shared::Shared;

/// Calls `body` with `first`, and with every `step`th number after it below `end`.
#[inline(always)]
pub fn strided(first: u32, end: u32, step: u32, mut body: impl FnMut(u32)) {
    let mut at = first;
    while at < end {
        body(at);
        at += step;
    }
}

/// Stores zeros to `count` words. Every one of `threads` threads must call it. There is no barrier.
#[inline(always)]
pub fn clear(words: Shared<u32>, count: u32, threads: u32) {
    strided(gpu::thread(), count, threads, |i| words.at(i).st(0));
}
