//! A product of dense matrices at the micro-tiles of 1 x 64 that were found in another one: four warps gather the rows
//! of X that a panel of 64 columns lists, and start the copies of the panel's rows of Y, two warpgroups multiply, 64
//! listed rows each. The grid is persistent: how many tiles the lists make is read on the device, and only these are
//! dealt.

mod out;

use crate::device::prelude::*;
use crate::device::rows::{self, Rows, Source};
use crate::device::scan::inclusive_by;
use crate::families::sddmm::abi::*;

const DEPTH: u32 = 64;
/// Listed rows of a tile, and of a warpgroup.
const LISTED: u32 = SAMPLED_LISTED as u32;
const HALF_LISTED: u32 = LISTED / 2;
const _: () = assert!(LISTED == 4 * rows::ROWS);

/// What a thread block computes next: places `from .. from + rows` of a panel's list.
#[derive(Clone, Copy)]
struct Work {
    list: u32,
    from: u32,
    rows: u32,
}

/// 32 lists, one a lane, and how many tiles come before and in them.
#[derive(Clone, Copy)]
struct Hand {
    first: u32,
    count: u32,
    /// Tiles of the lists up to this lane's.
    upto: u32,
    before: u32,
    all: u32,
}

impl Hand {
    /// Lists from `first` on. All lanes of a warp together.
    #[inline(always)]
    fn of(p: &PitSampledParams, first: u32, before: u32) -> Self {
        let lane = gpu::opaque_thread() % 32;
        let list = first + lane;
        let count = global::ld_cg_b32(p.counts + list as u64 * 4, list < p.panels);
        let upto = inclusive_by(lane, count.div_ceil(LISTED), |sum, before| sum + before);
        Hand { first, count, upto, before, all: warp::shfl(upto, 31) }
    }

    /// Tile number `index`, if there are so many; numbers only ascend. All lanes of a warp together.
    #[inline(always)]
    fn work(&mut self, p: &PitSampledParams, index: u32) -> Work {
        while index >= self.before + self.all && self.first < p.panels {
            *self = Hand::of(p, self.first + 32, self.before + self.all);
        }
        let within = index - self.before;
        // Of the lists that end behind this tile the first; none past the last tile, where no lane has rows.
        let lane = warp::ballot(self.upto > within).trailing_zeros() % 32;
        let count = warp::shfl(self.count, lane);
        let upto = warp::shfl(self.upto, lane);
        let from = (within + count.div_ceil(LISTED) - upto) * LISTED;
        Work {
            list: self.first + lane,
            from,
            rows: if self.first < p.panels { (count - from).min(LISTED) } else { 0 },
        }
    }
}

impl<A, L: LoaderInfo> Stages for PitSampled<A, L> {
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<A: Multiply, L: Loader> PitSampled<A, L> {
    /// Address of a place of a panel's list.
    #[inline(always)]
    fn listed(p: &PitSampledParams, work: Work, place: u32) -> u64 {
        p.lists + (work.list as u64 * p.stride as u64 + (work.from + place) as u64) * 4
    }

    #[inline(always)]
    fn produce(p: &PitSampledParams, at: u64) {
        let thread = gpu::thread() - CONSUMERS * 32;
        let mut hand = Hand::of(p, 0, 0);
        let mut ring = Ring::<Self>::producer();
        let mut index = gpu::block_x();
        let mut work = hand.work(p, index);
        while work.rows > 0 {
            let rows = Self::rows(p, work);
            let mut deep = 0;
            while deep < p.k {
                ring.wait_empty();
                let full = ring.full();
                if L::BY_ONE {
                    if thread == 0 {
                        barrier::arrive_expect_tx(full, SMEM_TILE as u32);
                        Self::start_y(p, at, work, deep, ring.slot);
                    }
                } else {
                    Self::start_y(p, at, work, deep, ring.slot);
                }
                if deep + DEPTH <= p.k {
                    Self::bring::<true>(p, rows, deep, ring.slot);
                } else {
                    Self::bring::<false>(p, rows, deep, ring.slot);
                }
                gather::cp_async_arrive(full);
                ring.advance();
                deep += DEPTH;
            }
            index += gpu::grid_x();
            work = hand.work(p, index);
        }
        copy::cp_async_wait_all();
    }

    /// Starts the copies of a stage of Y: one, or this thread's share.
    #[inline(always)]
    fn start_y(p: &PitSampledParams, at: u64, work: Work, deep: u32, slot: u32) {
        let thread = gpu::thread() - CONSUMERS * 32;
        let team = Team { thread, threads: SAMPLED_COPIERS };
        let place = [deep, work.list * SAMPLED_WIDTH as u32];
        let shape = Shape { rows: SAMPLED_WIDTH, row_bytes: PANEL_BYTES, element: 2 };
        L::tile(team, Self::stage(slot), (at, &p.y_map), place, shape, Self::full(slot));
    }

    /// The rows of X that this lane brings 16 bytes of: those that are listed.
    #[inline(always)]
    fn rows(p: &PitSampledParams, work: Work) -> Rows {
        let thread = gpu::opaque_thread() - CONSUMERS * 32;
        let own = global::ld_cg_b32(Self::listed(p, work, thread), thread < work.rows);
        rows::shared_out(thread, own, work.rows)
    }

    /// Starts this warp's copies of a stage. What lies in the place of rows that are not there makes columns of the
    /// accumulators that nobody stores.
    #[inline(always)]
    fn bring<const WHOLE: bool>(p: &PitSampledParams, rows: Rows, deep: u32, slot: u32) {
        let thread = gpu::opaque_thread() - CONSUMERS * 32;
        let source = Source { address: p.x, row_bytes: p.ldx_bytes, columns: p.k };
        let to = Self::stage(slot) + Self::X_AT as u32;
        rows::bring::<WHOLE>(source, rows, thread, deep, to);
    }

    /// A warpgroup's 64 listed rows of every tile. Where a tile has none of them it only lets the stages go.
    #[inline(always)]
    fn consume<E: WgmmaElem>(p: &PitSampledParams) {
        let group = warp::uniform(gpu::thread() / 128);
        let mut hand = Hand::of(p, 0, 0);
        let mut ring = Ring::<Self>::consumer();
        let mut index = gpu::block_x();
        let mut work = hand.work(p, index);
        while work.rows > 0 {
            let used = group * HALF_LISTED < work.rows;
            let lines = Self::lines(p, work, group);
            let mut acc = Acc::<1>::zero();
            let mut deep = 0;
            while deep < p.k {
                let slot = ring.wait_full();
                if used {
                    // The gathered rows were written by ordinary copies.
                    A::fence_proxy_async();
                    A::fence(&mut acc);
                    Self::multiply::<E>(&mut acc, slot, group);
                    ring.issued::<A, _>(&mut acc);
                } else {
                    Self::release_pending(slot);
                }
                ring.advance();
                deep += DEPTH;
            }
            ring.drain::<A, _>(&mut acc);
            if used {
                A::exchange_quarters(&mut acc, Self::out(group), 1 + group);
                Self::epilogue::<E>(p, work, group, lines, &acc);
            }
            index += gpu::grid_x();
            work = hand.work(p, index);
        }
    }

    #[inline(always)]
    fn multiply<E: WgmmaElem>(acc: &mut Acc<1>, slot: u32, group: u32) {
        let (y, row) = (Self::stage(slot), PANEL_BYTES as u32);
        let x = y + Self::X_AT as u32 + group * HALF_LISTED * row;
        unroll!(step < 4, {
            let deep = step as u32 * 32;
            let a = frag::descriptor(y + deep, row, 16);
            let b = frag::descriptor(x + deep, row, 16);
            A::mma::<E, 1, 0, 0>(acc, a, b);
        });
    }
}

impl<W: WalkInfo, E: WgmmaElem, A: Multiply, L: Loader> Kernel<W, E, PitSampledParams>
    for PitSampled<A, L>
{
    #[inline(always)]
    unsafe fn run(p: &PitSampledParams, at: u64) {
        if gpu::thread() == 0 {
            // Every thread that gathers, and the copy of Y, if none of theirs.
            Self::make_barriers(SAMPLED_COPIERS + L::BY_ONE as u32, CONSUMERS);
            L::prefetch_maps::<1>(at);
        }
        gpu::sync_threads();
        grid::wait_dependency();
        // After the wait: what starts early may rely on all that came before this kernel.
        grid::launch_dependents();
        if gpu::thread() >= CONSUMERS * 32 {
            Self::produce(p, at);
        } else {
            Self::consume::<E>(p);
        }
    }
}
