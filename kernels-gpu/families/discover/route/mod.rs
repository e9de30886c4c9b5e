//! Sort of a router's choices into slots by expert, in two kernels and without the host. Each thread block counts its
//! choices; then each adds up the counts of the preceding ones. Few choices fit in one thread block and one kernel.
//! Within a warp, equal choices are ranked by lane (`match`), so the sort is stable. `detect_choices` makes such lists
//! in one kernel, for products that accept an expert's rows in any order: thread blocks append in order of arrival, and
//! each list has capacity for all choices. Here the experts are contiguous, and sums have a fixed order.

mod gate;
mod gradient;
mod sum;

use crate::device::compact::{ones_before, scan_warp};
use crate::device::prelude::*;
use crate::device::strided::{clear, strided};
use crate::families::discover::abi::*;

buffers! {
    // `Routing::queue` checks the number of choices (`host/core/dynamic/routing.rs`), and `Moe` the extents of its operands
    // (`host/nn/moe`). The launches allocate the routes and check alignment (`host/core/families/discover/route.rs`).
    unsafe RouteParams {
        choices: u32, Fresh;
        counts: u32, Fresh;
        order: u32, Fresh;
        offsets: u32, Fresh;
        panels: u32, ReadWrite;
        rows: [u32; 4], ReadWrite;
        sums: [u32; 4], ReadWrite;
        weights: f32, Fresh;
        gradient: f32, ReadWrite;
        gates: [u32; 4], ReadWrite;
    }
}

const WARPS: u32 = ROUTE_THREADS / 32;
/// Per-expert arrays in shared memory: first slots (before these, counts), positions of this thread block, panels.
const STARTS: u32 = 0;
const PLACES: u32 = 1;
const PANELS: u32 = 2;
/// First array of the warps.
const OWN: u32 = 3;
/// Absent choice, past the last one.
const NONE: u32 = u32::MAX;

/// An expert's word in an array.
#[inline(always)]
fn word(array: u32, expert: u32) -> Shared<u32> {
    // SAFETY: `RouteCount` has one array, `RoutePlace` has `OWN` arrays and one for each warp.
    unsafe { Shared::dynamic(0) }.at(array * ROUTE_STRIDE + expert)
}

/// Expert of choice `at`, relative to the first expert; dropped choices are numbered after the last expert.
#[inline(always)]
fn expert(p: &RouteParams, at: u32, inside: bool) -> u32 {
    let chosen = p.choices().at(at).ld_if(inside);
    // A number before the first expert wraps to one past the last.
    chosen.wrapping_sub(p.first).min(p.bins.value - 1)
}

/// Counts the choices `first..end` of each expert in an array. They are distributed over `threads` threads: a warp or a
/// thread block.
#[inline(always)]
fn count(p: &RouteParams, array: u32, (first, end): (u32, u32), threads: u32) {
    let mut from = first + gpu::thread() % threads;
    while from < end {
        unroll!(i < 4, {
            let at = from + i as u32 * threads;
            let chosen = expert(p, at, at < end);
            if at < end {
                word(array, chosen).red_add(1);
            }
        });
        from += 4 * threads;
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, RouteParams> for RouteCount {
    #[inline(always)]
    unsafe fn run(p: &RouteParams, _: Maps) {
        clear(word(STARTS, 0), p.bins.value, ROUTE_THREADS);
        gpu::sync_threads();
        grid::wait_dependency();
        // After the wait: kernels that start early may rely on all launches before this one.
        grid::launch_dependents();
        let first = gpu::block_x() * p.share;
        count(p, STARTS, (first, (first + p.share).min(p.count)), ROUTE_THREADS);
        gpu::sync_threads();
        let to = p.counts().at(gpu::block_x() as u64 * p.bins.value as u64);
        strided(gpu::thread(), p.bins.value, ROUTE_THREADS, |bin| {
            to.at(bin).st(word(STARTS, bin).ld());
        });
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, RouteParams> for RoutePlace {
    #[inline(always)]
    unsafe fn run(p: &RouteParams, _: Maps) {
        clear(word(STARTS, 0), Self::SHARED_BYTES / 4, ROUTE_THREADS);
        gpu::sync_threads();
        grid::wait_dependency();
        grid::launch_dependents();
        let warp = gpu::thread() / 32;
        let share = p.share / WARPS;
        let first = gpu::block_x() * p.share + warp * share;
        let part = (first, (first + share).min(p.count));
        count(p, OWN + warp, part, 32);
        if p.counts == 0 {
            gpu::sync_threads();
            Self::add_up_alone(p);
        } else {
            Self::add_up(p);
        }
        gpu::sync_threads();
        if warp == 0 {
            Self::scan(p);
        }
        gpu::sync_threads();
        Self::give_places(p);
        gpu::sync_threads();
        Self::place(p, OWN + warp, part);
        Self::list(p);
    }
}

impl RoutePlace {
    /// Adds up each expert's choices, over all thread blocks and over the preceding ones.
    #[inline(always)]
    fn add_up(p: &RouteParams) {
        let all = p.blocks * p.bins.value;
        let mut from = gpu::thread();
        while from < all {
            let mut counts = [0; 8];
            unroll!(i < 8, {
                let at = from + i as u32 * ROUTE_THREADS;
                counts[i] = p.counts().at(at).ld_if(at < all);
            });
            unroll!(i < 8, {
                let (block, bin) = p.bins.of(from + i as u32 * ROUTE_THREADS);
                if counts[i] != 0 {
                    word(STARTS, bin).red_add(counts[i]);
                    if block < gpu::block_x() {
                        word(PLACES, bin).red_add(counts[i]);
                    }
                }
            });
            from += 8 * ROUTE_THREADS;
        }
    }

    /// [`Self::add_up`] for a thread block that has all choices.
    #[inline(always)]
    fn add_up_alone(p: &RouteParams) {
        strided(gpu::thread(), p.bins.value, ROUTE_THREADS, |bin| {
            let mut count = 0;
            unroll!(w < 8, { count += word(OWN + w as u32, bin).ld() });
            word(STARTS, bin).st(count);
        });
    }

    /// Scans counts to first slots and first panels; the first thread block stores them for others. One warp.
    #[inline(always)]
    fn scan(p: &RouteParams) {
        let lane = gpu::thread() % 32;
        let leaves = gpu::block_x() == 0;
        let (mut slots, mut panels, mut from) = (0, 0, 0);
        while from < p.bins.value {
            let bin = from + lane;
            let inside = bin < p.bins.value;
            let count = if inside { word(STARTS, bin).ld() } else { 0 };
            // Dropped choices are not in a panel.
            let own = if bin + 1 < p.bins.value { count.div_ceil(ROUTE_PANEL) } else { 0 };
            let ((start, of_counts), (first, of_panels)) = (scan_warp(count), scan_warp(own));
            let (start, first) = (slots + start, panels + first);
            slots += of_counts;
            panels += of_panels;
            if inside {
                word(STARTS, bin).st(start);
                word(PLACES, bin).red_add(start);
                word(PANELS, bin).st(first);
                p.offsets().at(bin).st_if(start, leaves);
            }
            from += 32;
        }
        if lane == 0 {
            word(STARTS, p.bins.value).st(p.count);
            p.offsets().at(p.bins.value).st_if(p.count, leaves);
            p.panels().st_if(panels, leaves);
        }
    }

    /// Replaces the counts of the warps by the position of their first choice of each expert.
    #[inline(always)]
    fn give_places(p: &RouteParams) {
        strided(gpu::thread(), p.bins.value, ROUTE_THREADS, |bin| {
            let mut place = word(PLACES, bin).ld();
            unroll!(w < 8, {
                let own = word(OWN + w as u32, bin);
                let count = own.ld();
                own.st(place);
                place += count;
            });
        });
    }

    /// Writes this warp's choices to their slots, 32 at a time.
    #[inline(always)]
    fn place(p: &RouteParams, array: u32, (first, end): (u32, u32)) {
        let lane = gpu::thread() % 32;
        let mut from = first + lane;
        // All lanes run the same number of iterations, as they vote.
        while from - lane < end {
            let mut chosen = [NONE; 4];
            unroll!(i < 4, {
                let at = from + i as u32 * 32;
                let read = expert(p, at, at < end);
                chosen[i] = if at < end { read } else { NONE };
            });
            unroll!(i < 4, {
                let at = from + i as u32 * 32;
                let alike = warp::match_any(chosen[i]);
                let rank = ones_before(alike);
                let own = word(array, if at < end { chosen[i] } else { 0 });
                let place = own.ld();
                warp::sync(u32::MAX);
                if at < end {
                    if rank == 0 {
                        own.st(place + alike.count_ones());
                    }
                    // The choices may have changed since they were counted; the check keeps stores in range.
                    if place + rank < p.count {
                        p.order().at(place + rank).st(at);
                    }
                }
                warp::sync(u32::MAX);
            });
            from += 128;
        }
    }

    /// Lists the panels; one warp per expert.
    #[inline(always)]
    fn list(p: &RouteParams) {
        let warps = p.blocks * WARPS;
        let first = gpu::block_x() * WARPS + gpu::thread() / 32;
        strided(first, p.bins.value - 1, warps, |expert| {
            let start = word(STARTS, expert).ld();
            let count = word(STARTS, expert + 1).ld() - start;
            let first = word(PANELS, expert).ld() + 1;
            let panels = count.div_ceil(ROUTE_PANEL);
            // Panels and groups have equal sizes, so that the thread blocks that process them stay in step.
            let rows = count.div_ceil(panels.max(1));
            let together = panels.div_ceil(panels.div_ceil(ROUTE_TOGETHER).max(1)).max(1);
            strided(gpu::thread() % 32, panels, 32, |row_block| {
                let from = row_block * rows;
                let to = p.panels().at((first + row_block) as u64 * ROUTE_RECORD as u64);
                let slots = (count - from).min(rows);
                let rank = row_block % together;
                let group = together.min(panels - (row_block - rank));
                let record = [expert, start + from, slots, rank | group << 16];
                to.cast::<[u32; 4]>().st(record);
            });
        });
    }
}
