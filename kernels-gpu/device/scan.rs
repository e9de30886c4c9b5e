//! Scans and integer sums over the lanes of a warp and the threads of a thread block.

use super::gpu;
use super::ptx::warp;
use super::shared::Shared;
use crate::abi::SCAN_THREADS;

pub const WARPS: u32 = SCAN_THREADS / 32;
pub const ALL_LANES: u32 = u32::MAX;

/// Words of shared memory through which the warps exchange values.
#[inline(always)]
fn of_warps() -> Shared<u32> {
    // SAFETY: the host launches kernels that scan or sum with at least a word of shared memory per warp.
    unsafe { Shared::dynamic(0) }
}

#[inline(always)]
pub fn lane() -> u32 {
    gpu::thread() % 32
}

/// Stores the value of each warp's last lane to shared memory, where all threads may read it. Returns the warp index.
/// Shared memory must not be in use: there is no barrier before the stores.
#[inline(always)]
pub fn share_last_of_warp(value: u32) -> u32 {
    let own = gpu::thread() / 32;
    if lane() == 31 {
        of_warps().at(own).st(value);
    }
    gpu::sync_threads();
    own
}

/// Inclusive scan of `value` over the lanes of a warp by `join`, for which 0 is neutral. `lane`: this lane's number.
/// Every lane of the warp must call it together.
#[inline(always)]
pub fn inclusive_by(lane: u32, value: u32, join: impl Fn(u32, u32) -> u32) -> u32 {
    let mut all = value;
    unroll!(i < 5, {
        let before = warp::shfl_up(all, 1 << i);
        if lane >= 1 << i {
            all = join(all, before);
        }
    });
    all
}

/// Sum of the values of this lane and the lanes before it. Every lane of the warp must call it together.
#[inline(always)]
pub fn inclusive(value: u32) -> u32 {
    inclusive_by(lane(), value, |sum, before| sum + before)
}

/// Sum of the values of the last lanes of the warps before this one, and of all warps. Every thread of the thread block
/// must call it. There is no barrier before the stores to shared memory.
#[inline(always)]
pub fn over_warps(value: u32) -> (u32, u32) {
    let own = share_last_of_warp(value);
    let (mut before, mut all) = (0, 0);
    unroll!(w < 8, {
        let of_warp = of_warps().at(w as u32).ld();
        before += if (w as u32) < own { of_warp } else { 0 };
        all += of_warp;
    });
    gpu::sync_threads();
    (before, all)
}

/// Exclusive sum over the threads before this one, and the sum of all. Every thread of the thread block must call it.
#[inline(always)]
pub fn scan(value: u32) -> (u32, u32) {
    let inclusive = inclusive(value);
    gpu::sync_threads();
    let (before, all) = over_warps(inclusive);
    (before + inclusive - value, all)
}

/// Sum over a thread block of eight warps. Every thread must call it, and only once: a second call would overwrite sums
/// that other warps still read.
#[inline(always)]
pub fn sum(value: u32) -> u32 {
    let own = warp::sum(value);
    if gpu::thread().is_multiple_of(32) {
        of_warps().at(gpu::thread() / 32).st(own);
    }
    gpu::sync_threads();
    let mut all = 0;
    unroll!(w < 8, { all += of_warps().at(w as u32).ld() });
    all
}
