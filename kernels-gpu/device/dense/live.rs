//! The same product for rows whose number is known on the device: family `dense_live`.

use super::{Body, DenseElem, barrier, bulk, cluster, gpu, grid, warp};
use crate::abi::*;
use crate::device::ptx::{copy, global};

impl<const GROUPS: usize, const CHUNKS: usize, const CUT: usize> LiveTile<GROUPS, CHUNKS, CUT> {
    /// The row of tiles that is computed, in shared memory: registers are the sums'.
    #[inline(always)]
    fn down() -> u32 {
        copy::arena() + Self::DOWN as u32
    }

    /// Brings the first stages of B to L2 while the launch ahead ends. If that writes them: L2 is where its writes go.
    #[inline(always)]
    fn fetch_ahead(p: &DenseParams, at: u64) {
        let warp = warp::shuffle::<32>(gpu::thread() / 32, 0, u32::MAX);
        if warp < DenseTile::<GROUPS, CHUNKS, CUT>::WARPS as u32 || !warp::elected() {
            return;
        }
        bulk::prefetch_map(at);
        bulk::prefetch_map(at + 128);
        let [_, left] = DenseTile::<GROUPS, CHUNKS, CUT>::corner(|| 0);
        let [from, count] = DenseTile::<GROUPS, CHUNKS, CUT>::part(p);
        let end = from + DenseTile::<GROUPS, CHUNKS, CUT>::ahead(count);
        let mut s = from;
        while s < end {
            unroll!(c < CHUNKS, most 4, {
                let (x, y) = (left + 64 * c as u32, s * 64);
                bulk::prefetch(at + 128, x, y);
            });
            s += 1;
        }
    }

    /// Is there a row of this tile in that row of tiles? The same for all threads of a cluster.
    #[inline(always)]
    fn reaches(p: &DenseParams, down: u32) -> bool {
        let rows = global::load_b32_fresh(p.live, true).min(p.m);
        let high = DenseTile::<GROUPS, CHUNKS, CUT>::ROWS as u32;
        down * high < rows
    }
}

impl<const GROUPS: usize, const CHUNKS: usize, const CUT: usize> Body
    for LiveTile<GROUPS, CHUNKS, CUT>
{
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: DenseElem>(p: &DenseParams, at: u64) {
        Self::fetch_ahead(p, at);
        if gpu::thread() == 0 {
            copy::store_shared_b32(Self::down(), gpu::block_y());
        }
        gpu::sync_threads();
        grid::wait_for_previous();
        // Not earlier: the next kernel may take it that what this one waited for has ended.
        grid::let_next_start();
        // All threads of a cluster alike: nobody waits for those that leave.
        while Self::reaches(p, copy::load_shared_b32(Self::down())) {
            DenseTile::<GROUPS, CHUNKS, CUT>::tile::<E>(p, at, || {
                copy::load_shared_b32(Self::down())
            });
            // The ring is made anew: the stages have been read, by whoever reads them, before they are written.
            barrier::fence_copies();
            if CUT > 1 {
                cluster::arrive();
                cluster::wait();
            } else {
                gpu::sync_threads();
            }
            // Asked again: there is no register for the answer while sums are.
            if gpu::thread_again() == 0 {
                let next = copy::load_shared_b32(Self::down()) + gpu::grid_y();
                copy::store_shared_b32(Self::down(), next);
            }
            gpu::sync_threads();
        }
    }
}
