//! Compaction: exclusive scans of a warp and of arrays, and the ranks of set bits.

use super::gpu;
use super::ptx::warp;
use super::scan::{inclusive, lane, scan};
use super::strided::strided;
use crate::abi::SCAN_THREADS;

/// Sum over the lanes before this one, and over the warp. Every lane must call it together.
#[inline(always)]
pub fn scan_warp(value: u32) -> (u32, u32) {
    let inclusive = inclusive(value);
    (inclusive - value, warp::shfl(inclusive, 31))
}

/// [`scan`] of `N` consecutive values of each thread: the sum before each of them, and of all.
#[inline(always)]
pub fn scan_each<const N: usize>(values: [u32; N]) -> ([u32; N], u32) {
    let mut own = 0;
    unroll!(i < N, { own += values[i] });
    let (mut sum, all) = scan(own);
    let mut before = [0; N];
    unroll!(i < N, {
        before[i] = sum;
        sum += values[i];
    });
    (before, all)
}

/// Exclusive scan of `count` values by one thread block, `N` values of each thread at a time. `load` gets the index of
/// a value, and whether there is one; without one it returns 0. `store` gets the index and the sum before the value.
/// Returns the sum of all.
#[inline(always)]
pub fn scan_all<const N: usize>(
    count: u32,
    load: impl Fn(u32, bool) -> u32,
    store: impl Fn(u32, u32),
) -> u32 {
    let (mut sum, mut first) = (0, 0);
    while first < count {
        let own = first + gpu::thread() * N as u32;
        let mut values = [0; N];
        unroll!(i < N, { values[i] = load(own + i as u32, own + (i as u32) < count) });
        let (before, all) = scan_each(values);
        unroll!(i < N, {
            if own + (i as u32) < count {
                store(own + i as u32, sum + before[i]);
            }
        });
        sum += all;
        first += N as u32 * SCAN_THREADS;
    }
    sum
}

/// Number of set bits below the bit of this lane.
#[inline(always)]
pub fn ones_before(bits: u32) -> u32 {
    (bits & ((1 << lane()) - 1)).count_ones()
}

/// Calls `store` with the index and the rank of each set bit among `count` bits. `word` returns 32 bits, and the rank
/// of the first of them. One thread block of `threads` threads.
#[inline(always)]
pub fn each_one(
    threads: u32,
    count: u32,
    word: impl Fn(u32) -> [u32; 2],
    store: impl Fn(u32, u32),
) {
    strided(gpu::thread(), count, threads, |at| {
        let [bits, rank] = word(at / 32);
        if bits >> lane() & 1 != 0 {
            store(at, rank + ones_before(bits));
        }
    });
}
