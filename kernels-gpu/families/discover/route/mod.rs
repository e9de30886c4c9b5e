//! A router's choices to slots sorted by expert, in two kernels and without the host: each thread block counts its
//! choices, then each adds up what those in front of it counted; few choices are one thread block's, and one kernel's.
//! Within a warp, equal choices are ranked by lane
//! (`match`), so the sort is stable. `detect_choices` lists the same in one kernel, for products that take an expert's
//! rows in any order: thread blocks append as they come, and each list has room for all. Here experts lie one behind
//! the other, and sums have one order.

mod gate;
mod gradient;
mod sum;

use crate::device::prelude::*;
use crate::device::scan::inclusive;
use crate::families::discover::abi::*;

const WARPS: u32 = ROUTE_THREADS / 32;
/// Arrays over the experts in shared memory: first slots (and, before these, counts), places of this thread block,
/// panels.
const STARTS: u32 = 0;
const PLACES: u32 = 1;
const PANELS: u32 = 2;
/// Those of the warps begin here.
const OWN: u32 = 3;
/// No choice: past the last one.
const NONE: u32 = u32::MAX;

/// Shared address of an expert's word in an array.
#[inline(always)]
fn word(array: u32, expert: u32) -> u32 {
    copy::dynamic_shared() + (array * ROUTE_STRIDE + expert) * 4
}

/// The expert of choice `at`, from the first one on; those of none come behind the last one.
#[inline(always)]
fn expert(p: &RouteParams, at: u32, inside: bool) -> u32 {
    let chosen = global::ld_cg_b32(p.choices + at as u64 * 4, inside);
    // A number in front of the first one becomes one past the last.
    chosen.wrapping_sub(p.first).min(p.bins.value - 1)
}

#[inline(always)]
fn clear(words: u32) {
    let mut at = gpu::thread();
    while at < words {
        copy::st_shared_b32(copy::dynamic_shared() + at * 4, 0);
        at += ROUTE_THREADS;
    }
    gpu::sync_threads();
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, RouteParams> for RouteCount {
    #[inline(always)]
    unsafe fn run(p: &RouteParams, _: u64) {
        clear(p.bins.value);
        grid::wait_dependency();
        // After the wait: what starts early may rely on all that came before this kernel.
        grid::launch_dependents();
        let first = gpu::block_x() * p.share;
        let end = (first + p.share).min(p.count);
        let mut from = first + gpu::thread();
        while from < end {
            unroll!(i < 4, {
                let at = from + i as u32 * ROUTE_THREADS;
                let chosen = expert(p, at, at < end);
                if at < end {
                    copy::red_shared_add(word(0, chosen), 1);
                }
            });
            from += 4 * ROUTE_THREADS;
        }
        gpu::sync_threads();
        let to = p.counts + gpu::block_x() as u64 * p.bins.value as u64 * 4;
        let mut at = gpu::thread();
        while at < p.bins.value {
            let count = copy::ld_shared_b32(word(0, at));
            global::st_b32(to + at as u64 * 4, count);
            at += ROUTE_THREADS;
        }
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, RouteParams> for RoutePlace {
    #[inline(always)]
    unsafe fn run(p: &RouteParams, _: u64) {
        clear(Self::SHARED_BYTES / 4);
        grid::wait_dependency();
        grid::launch_dependents();
        let warp = gpu::thread() / 32;
        let share = p.share / WARPS;
        let first = gpu::block_x() * p.share + warp * share;
        let part = (warp, first, (first + share).min(p.count));
        Self::count(p, part);
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
        Self::place(p, part);
        Self::list(p);
    }
}

impl RoutePlace {
    /// This warp's choices of each expert.
    #[inline(always)]
    fn count(p: &RouteParams, (warp, first, end): (u32, u32, u32)) {
        let mut from = first + gpu::thread() % 32;
        while from < end {
            unroll!(i < 4, {
                let at = from + i as u32 * 32;
                let chosen = expert(p, at, at < end);
                if at < end {
                    copy::red_shared_add(word(OWN + warp, chosen), 1);
                }
            });
            from += 128;
        }
    }

    /// Each expert's choices, of all thread blocks and of those in front of this one.
    #[inline(always)]
    fn add_up(p: &RouteParams) {
        let all = p.blocks * p.bins.value;
        let mut from = gpu::thread();
        while from < all {
            let mut counts = [0; 8];
            unroll!(i < 8, {
                let at = from + i as u32 * ROUTE_THREADS;
                counts[i] = global::ld_cg_b32(p.counts + at as u64 * 4, at < all);
            });
            unroll!(i < 8, {
                let (block, bin) = p.bins.of(from + i as u32 * ROUTE_THREADS);
                if counts[i] != 0 {
                    copy::red_shared_add(word(STARTS, bin), counts[i]);
                    if block < gpu::block_x() {
                        copy::red_shared_add(word(PLACES, bin), counts[i]);
                    }
                }
            });
            from += 8 * ROUTE_THREADS;
        }
    }

    /// The same of a thread block that has all choices.
    #[inline(always)]
    fn add_up_alone(p: &RouteParams) {
        let mut bin = gpu::thread();
        while bin < p.bins.value {
            let mut count = 0;
            unroll!(w < 8, {
                count += copy::ld_shared_b32(word(OWN + w as u32, bin));
            });
            copy::st_shared_b32(word(STARTS, bin), count);
            bin += ROUTE_THREADS;
        }
    }

    /// Counts to first slots and first panels; the first thread block leaves them for others. One warp.
    #[inline(always)]
    fn scan(p: &RouteParams) {
        let lane = gpu::thread() % 32;
        let leaves = gpu::block_x() == 0;
        let (mut slots, mut panels, mut from) = (0, 0, 0);
        while from < p.bins.value {
            let bin = from + lane;
            let inside = bin < p.bins.value;
            let count = if inside { copy::ld_shared_b32(word(STARTS, bin)) } else { 0 };
            // Choices of none have no panel.
            let own = if bin + 1 < p.bins.value { count.div_ceil(ROUTE_PANEL) } else { 0 };
            let (start, first) = (slots + before(count), panels + before(own));
            slots = warp::shfl(start + count, 31);
            panels = warp::shfl(first + own, 31);
            if inside {
                copy::st_shared_b32(word(STARTS, bin), start);
                copy::red_shared_add(word(PLACES, bin), start);
                copy::st_shared_b32(word(PANELS, bin), first);
                global::st_b32_if(p.offsets + bin as u64 * 4, start, leaves);
            }
            from += 32;
        }
        if lane == 0 {
            copy::st_shared_b32(word(STARTS, p.bins.value), p.count);
            global::st_b32_if(p.offsets + p.bins.value as u64 * 4, p.count, leaves);
            global::st_b32_if(p.panels, panels, leaves);
        }
    }

    /// Counts of the warps to the place of their first choice of each expert.
    #[inline(always)]
    fn give_places(p: &RouteParams) {
        let mut bin = gpu::thread();
        while bin < p.bins.value {
            let mut place = copy::ld_shared_b32(word(PLACES, bin));
            unroll!(w < 8, {
                let own = word(OWN + w as u32, bin);
                let count = copy::ld_shared_b32(own);
                copy::st_shared_b32(own, place);
                place += count;
            });
            bin += ROUTE_THREADS;
        }
    }

    /// Writes this warp's choices to their slots, 32 at a time.
    #[inline(always)]
    fn place(p: &RouteParams, (warp, first, end): (u32, u32, u32)) {
        let lane = gpu::thread() % 32;
        let in_front = (1u32 << lane) - 1;
        let mut from = first + lane;
        // The same number of turns for all lanes: they vote.
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
                let rank = (alike & in_front).count_ones();
                let own = word(OWN + warp, if at < end { chosen[i] } else { 0 });
                let place = copy::ld_shared_b32(own);
                warp::sync(u32::MAX);
                if at < end {
                    if rank == 0 {
                        copy::st_shared_b32(own, place + alike.count_ones());
                    }
                    // Choices that were written meanwhile are not those that were counted.
                    if place + rank < p.count {
                        global::st_b32(p.order + (place + rank) as u64 * 4, at);
                    }
                }
                warp::sync(u32::MAX);
            });
            from += 128;
        }
    }

    /// Lists the row blocks; a warp takes an expert.
    #[inline(always)]
    fn list(p: &RouteParams) {
        let warps = p.blocks * WARPS;
        let mut expert = gpu::block_x() * WARPS + gpu::thread() / 32;
        while expert + 1 < p.bins.value {
            let start = copy::ld_shared_b32(word(STARTS, expert));
            let count = copy::ld_shared_b32(word(STARTS, expert + 1)) - start;
            let first = copy::ld_shared_b32(word(PANELS, expert)) + 1;
            let panels = count.div_ceil(ROUTE_PANEL);
            // As large as each other, panels and groups: who works through them stays in step.
            let rows = count.div_ceil(panels.max(1));
            let together = panels.div_ceil(panels.div_ceil(ROUTE_TOGETHER).max(1)).max(1);
            let mut row_block = gpu::thread() % 32;
            while row_block < panels {
                let from = row_block * rows;
                let to = p.panels + (first + row_block) as u64 * ROUTE_RECORD as u64 * 4;
                let slots = (count - from).min(rows);
                let rank = row_block % together;
                let group = together.min(panels - (row_block - rank));
                global::st_v4(to, [expert, start + from, slots, rank | group << 16]);
                row_block += 32;
            }
            expert += warps;
        }
    }
}

/// The sum over the lanes in front. Every lane must call it together.
#[inline(always)]
fn before(value: u32) -> u32 {
    inclusive(value) - value
}
