//! Product of dense matrices at the 1 x 64 micro-tiles that were found in another matrix. Four warps gather the rows of
//! X that a panel of 64 columns lists, and start the copies of the panel's rows of Y. Two warpgroups multiply, 64
//! listed rows each. The grid is persistent: the number of tiles in the lists is read on the device, and only these
//! tiles are distributed.

mod out;

use crate::device::fill::make_ring;
use crate::device::prelude::*;
use crate::device::rows::{self, Rows, Source};
use crate::device::scan::inclusive_by;
use crate::families::sddmm::abi::*;

buffers! {
    // `detect` finds the lists in a matrix of S's shape. `PitSampledLaunch::params` checks the alignment and the strides
    // of the matrices.
    unsafe PitSampledParams {
        lists: u32, Fresh;
        counts: u32, Fresh;
        x: u16, ReadWrite;
        s: u16, ReadWrite;
        gate: u16, ReadWrite;
    }
}

const DEPTH: u32 = 64;
/// Listed rows of a tile, and of a warpgroup.
const LISTED: u32 = SAMPLED_LISTED as u32;
const HALF_LISTED: u32 = LISTED / 2;
const _: () = assert!(LISTED == 4 * rows::ROWS);

/// Next tile of a thread block: entries `from .. from + rows` of a panel's list.
#[derive(Clone, Copy)]
struct Work {
    list: u32,
    from: u32,
    rows: u32,
}

/// 32 lists, one for each lane, the tiles in them, and the number of tiles in the lists before them.
#[derive(Clone, Copy)]
struct Hand {
    first: u32,
    count: u32,
    /// Tiles of the lists up to and with this lane's.
    upto: u32,
    before: u32,
    all: u32,
}

impl Hand {
    /// Loads 32 lists from `first` on. All lanes of a warp call it together.
    #[inline(always)]
    fn of(p: &PitSampledParams, first: u32, before: u32) -> Self {
        let lane = gpu::opaque_thread() % 32;
        let list = first + lane;
        let count = p.counts().at(list).ld_if(list < p.panels);
        let upto = inclusive_by(lane, count.div_ceil(LISTED), |sum, before| sum + before);
        Hand { first, count, upto, before, all: warp::shfl(upto, 31) }
    }

    /// Returns tile number `index`, without rows past the last tile. Indices only increase. All lanes of a warp call it
    /// together.
    #[inline(always)]
    fn work(&mut self, p: &PitSampledParams, index: u32) -> Work {
        while index >= self.before + self.all && self.first < p.panels {
            *self = Hand::of(p, self.first + 32, self.before + self.all);
        }
        let within = index - self.before;
        // First list that ends after this tile. Past the last tile this is lane 0, and no lane has rows.
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
    /// Address of entry `place` of a tile in its panel's list.
    #[inline(always)]
    fn listed(p: &PitSampledParams, work: Work, place: u32) -> Global<u32, Fresh> {
        p.lists().at(work.list as u64 * p.stride as u64 + (work.from + place) as u64)
    }

    #[inline(always)]
    fn produce(p: &PitSampledParams, at: Maps) {
        let thread = gpu::thread() - CONSUMER_WARPS * 32;
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
                        full.arrive_expect_tx(SMEM_TILE as u32);
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
                full.arrive_after_copies();
                ring.advance();
                deep += DEPTH;
            }
            index += gpu::grid_x();
            work = hand.work(p, index);
        }
        copy::cp_async_wait_all();
    }

    /// Starts the copy of a stage of Y, or this thread's share of it.
    #[inline(always)]
    fn start_y(p: &PitSampledParams, at: Maps, work: Work, deep: u32, slot: u32) {
        let thread = gpu::thread() - CONSUMER_WARPS * 32;
        let team = Team { thread, threads: SAMPLED_PRODUCER_THREADS };
        let place = [deep, work.list * SAMPLED_WIDTH as u32];
        let shape = Shape { rows: SAMPLED_WIDTH, row_bytes: PANEL_BYTES, element: 2 };
        L::tile(team, Self::stage(slot), (at.map(0), &p.y_map), place, shape, Self::full(slot));
    }

    /// Listed rows of X of which this lane copies 16 bytes each.
    #[inline(always)]
    fn rows(p: &PitSampledParams, work: Work) -> Rows {
        let thread = gpu::opaque_thread() - CONSUMER_WARPS * 32;
        let own = Self::listed(p, work, thread).ld_if(thread < work.rows);
        rows::of_thread(thread, own, work.rows)
    }

    /// Starts this warp's copies of a stage. Stale data in place of missing rows affects only columns of the
    /// accumulators that are not stored.
    #[inline(always)]
    fn bring<const WHOLE: bool>(p: &PitSampledParams, rows: Rows, deep: u32, slot: u32) {
        let thread = gpu::opaque_thread() - CONSUMER_WARPS * 32;
        let source = Source { matrix: p.x(), row_bytes: p.ldx_bytes, columns: p.k };
        let to = Self::stage(slot).bytes(Self::X_AT as u32);
        rows::gather::<WHOLE, _>(source, rows, thread, deep, to);
    }

    /// Computes a warpgroup's 64 listed rows of every tile. A warpgroup without rows in a tile only releases its
    /// stages.
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
                    // Ordinary copies (`cp.async`) wrote the gathered rows.
                    A::fence_proxy_async();
                    A::fence(&mut acc);
                    Self::multiply::<E>(&mut acc, slot, group);
                    ring.issued::<A, _>(&mut acc);
                } else {
                    Self::release(slot);
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
        let x = y.bytes(Self::X_AT as u32).bytes(group * HALF_LISTED * row);
        unroll!(step < 4, {
            let deep = step as u32 * 32;
            let a = y.bytes(deep).descriptor(row, 16);
            let b = x.bytes(deep).descriptor(row, 16);
            A::mma::<E, 1, 0, 0>(acc, a, b);
        });
    }
}

impl<W: WalkInfo, E: WgmmaElem, A: Multiply, L: Loader> Kernel<W, E, PitSampledParams>
    for PitSampled<A, L>
{
    #[inline(always)]
    unsafe fn run(p: &PitSampledParams, at: Maps) {
        // Every gathering thread arrives, and the thread that starts the copy of Y if the copy engine copies it.
        make_ring::<Self, L, 1>(at, SAMPLED_PRODUCER_THREADS + L::BY_ONE as u32);
        grid::wait_dependency();
        // After the wait: the dependent launch may assume that all launches before this kernel have ended.
        grid::launch_dependents();
        if gpu::thread() >= CONSUMER_WARPS * 32 {
            Self::produce(p, at);
        } else {
            Self::consume::<E>(p);
        }
    }
}
