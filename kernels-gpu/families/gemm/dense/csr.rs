//! Dense product with an unstructured sparse A: module `dense_csr`. Warps store the values of a stage's columns among
//! zeros in shared memory, at the positions in the plan's lists, while the next values are loaded. A list holds entries
//! of a group of rows, a quarter of the tile's.

use super::copies::B_ARRIVES;
use super::{DenseElem, DenseTile, Each};
use crate::abi::{STRIP_HEAD, STRIP_STEP, StripDeal, strip_place, strip_value};
use crate::device::prelude::*;
use crate::families::gemm::abi::*;

buffers! {
    // `Einsum::check` checks the shapes of the operands. The plan (`gemm::dense_csr`) makes heads
    // and lists, whose entries are positions of the values.
    unsafe DenseCsrParams {
        heads: u32, ReadWrite;
        words: u32, ReadWrite;
        values: u16, ReadWrite;
    }
}

/// Steps of a list that a warp holds in registers at once.
const HELD: usize = 8;

/// Max steps of a list that is prefetched as a whole. Large matrices have other limits: they are 3 to 6 % slower with
/// this prefetch.
const MOST_AHEAD: u32 = 64;

/// Index of the named barrier of all threads. Stores use the indices from 1 on.
const MADE: u32 = 8;

/// A word or a value of each step.
type Held = [u32; HELD];

impl<W: WalkInfo, E: DenseElem, const CHUNKS: usize, F: DenseForm<A: Multiply, L: Loader>>
    Kernel<W, E, DenseCsrParams> for FilledTile<CHUNKS, F>
{
    #[inline(always)]
    unsafe fn run(p: &DenseCsrParams, at: Maps) {
        grid::launch_dependents();
        DenseTile::<CHUNKS, F>::filled::<E>(p, at);
    }
}

impl<const CHUNKS: usize, F: DenseForm<A: Multiply, L: Loader>> DenseTile<CHUNKS, F> {
    /// Computes this thread block's tile. Called by all threads.
    #[inline(always)]
    fn filled<E: DenseElem>(p: &DenseCsrParams, at: Maps) {
        // `uniform`, as in `copies`.
        let warp = warp::uniform(gpu::thread() / 32);
        if warp == 0 {
            Self::begin_filled(&p.product, at);
        } else {
            Self::ready();
        }
        if warp >= Self::WARPS {
            // The accumulators of 256 columns need more registers than a thread has at launch.
            if CHUNKS == 4 && F::GROUPS == 1 {
                F::A::setmaxnreg_dec::<136>();
            }
            Self::fill(p, at, warp - Self::WARPS);
            Self::stand_by();
        } else {
            if CHUNKS == 4 && F::GROUPS == 1 {
                F::A::setmaxnreg_inc::<232>();
            }
            Self::made();
            let acc = Self::multiply::<E, true>(&p.product);
            // A part without stages has not waited for any copy.
            grid::wait_dependency();
            Self::epilogue::<E, _>(&p.product, &acc, Each);
        }
    }

    /// Waits until the barriers are initialized. All threads call it, from the code of their roles. The filling warps
    /// have issued the loads of their words by then.
    #[inline(always)]
    fn made() {
        barrier::sync_named_unaligned(MADE, <FilledTile<CHUNKS, F> as Tile>::THREADS);
    }

    /// Initializes the barriers and starts the copies of B for as many stages as fit. Called by the first warp.
    #[inline(always)]
    fn begin_filled(p: &DenseParams, at: Maps) {
        let sets_up = if F::L::BY_ONE { warp::elect_one() } else { gpu::thread() == 0 };
        if sets_up {
            Self::set_up(at, F::L::fills(32) + FilledTile::<CHUNKS, F>::STRIPS);
        }
        warp::sync(u32::MAX);
        Self::ready();
        if Self::starts() {
            grid::wait_dependency();
            let [from, count] = Self::part(p);
            let ahead = Self::ahead(count);
            let mut stage = 0;
            while stage < ahead {
                Self::copy_b(p, at, from + stage, stage);
                stage += 1;
            }
        }
        warp::sync(u32::MAX);
    }

    /// Starts the copy of B of a stage. Called by the lanes of a warp that start copies.
    #[inline(always)]
    fn copy_b(p: &DenseParams, at: Maps, stage: u32, slot: u32) {
        let corner = Self::corner(Each);
        let deep = stage * Self::DEPTH as u32;
        let team = Team::warp();
        Self::copy::<B_ARRIVES>(p, (at, Each), team, corner, deep, slot);
    }

    /// Stores the entries of this warp's row group into the stages of this thread block's part at which the warp has a
    /// turn. The steps of its list continue across stages. Words are loaded two bursts ahead, values one.
    #[inline(always)]
    fn fill(p: &DenseCsrParams, at: Maps, filler: u32) {
        let [from, count] = Self::part(&p.product);
        let (strips, turns) = (FilledTile::<CHUNKS, F>::STRIPS, FilledTile::<CHUNKS, F>::TURNS);
        let (strip, turn) = (filler % strips, filler / strips);
        let deal = StripDeal { stages: p.product.stages, parts: F::CUT as u32, turns };
        let rank = if F::CUT == 1 { 0 } else { cluster::rank() };
        let list = deal.list(gpu::block_y() * strips + strip, rank, turn) as u64;
        let lane = gpu::thread() % 32;
        let own = p.words().at(list * p.room as u64 * STRIP_STEP as u64 + lane as u64);
        let burst = HELD as u64 * STRIP_STEP as u64;
        let word_at =
            |first: Global<u32, ReadWrite>, i: usize| first.at(i as u64 * STRIP_STEP as u64);
        let head = p.heads().at(list * deal.head() as u64);
        let head_words = |from: u32| {
            let there = from + lane < deal.head();
            head.at(from + lane).ld_if(there)
        };
        // The plan's lists were written before the preceding launch. Their addresses depend on no other load, so they
        // are loaded at once, in order: `ReadWrite` keeps it, compilers would reorder `ReadOnly`.
        let mut words: Held = [0; HELD];
        unroll!(i < HELD, { words[i] = word_at(own, i).ld() });
        // Each lane holds a word of the head: in the loop, its loads would be waited for together with loads of values.
        let mut known = head_words(0);
        Self::made();
        let mut stage = turn;
        if stage >= count {
            return;
        }
        let of_lane = |known: u32, at: u32| warp::shfl(known, at % 32);
        let [base, slots, end] = [0, 1, 2].map(|at| of_lane(known, at));
        // After the last entry, no step is the end of a stage.
        let stop_of = |known: u32, at: u32| {
            let stop = of_lane(known, at);
            if stop == end { u32::MAX } else { stop }
        };
        let mut at_head = STRIP_HEAD;
        let mut stop = stop_of(known, at_head);
        let words_from = |first: Global<u32, ReadWrite>, step: u32| {
            let mut words: Held = [0; HELD];
            unroll!(i < HELD, {
                // SAFETY: the plan made the lists before the preceding launch, and no kernel
                // writes them.
                let at = unsafe { word_at(first, i).with::<ReadOnly>() };
                words[i] = at.ld_if(step + (i as u32) < end);
            });
            words
        };
        let values = p.values().at(base);
        // Past the last word, the row group's first value is loaded and not used.
        let values_of = |words: &Held, there: bool| {
            let mut found: Held = [0; HELD];
            unroll!(i < HELD, {
                let at = values.row_by_mad(strip_value(words[i]), 2);
                found[i] = at.ld_if(there);
            });
            found
        };
        unroll!(i < HELD, {
            words[i] = if (i as u32) < end { words[i] } else { 0 };
        });
        let many = end > HELD as u32 && end <= MOST_AHEAD && lane == 0;
        if many {
            // After this prefetch, bursts wait for L2 and not for global memory.
            F::L::prefetch_line(own, end * 4 * STRIP_STEP);
        }
        grid::wait_dependency();
        if many {
            let first = values.address();
            let ends = [first, values.at(slots).address() + 15].map(|at| at & !15);
            let from = values.wrapping_bytes(ends[0].wrapping_sub(first));
            F::L::prefetch_line(from, (ends[1] - ends[0]) as u32);
        }
        // Offsets at which a step's lanes store, extracted ahead: at the store, they would be waited for.
        let places_of = |words: &Held| {
            let mut places: Held = [0; HELD];
            unroll!(i < HELD, {
                places[i] = warp::opaque(strip_place(words[i]) * 2);
            });
            places
        };
        let mut laid = values_of(&words, end > 0);
        let mut places = places_of(&words);
        let mut ahead = own.at(burst);
        let mut later = words_from(ahead, HELD as u32);
        let mut step = 0;
        // `uniform` keeps the address in a register. Otherwise each step would read it again.
        let smem = warp::uniform(Self::stage(0).address());
        // SAFETY: the address of the first stage.
        let smem = unsafe { Shared::<u8>::new(smem) };
        let full = |slot: u32| smem.bytes(Self::BARRIERS as u32).cast::<Mbarrier>().at(slot);
        let open = |(slot, parity): (u32, u32), stage: u32| {
            let stages = Self::STAGES as u32;
            full(slot + stages).wait(parity);
            let copies = strip == 0 && stage >= stages;
            if copies && Self::starts() {
                Self::copy_b(&p.product, at, from + stage, slot);
            }
            let bytes = (FilledTile::<CHUNKS, F>::STRIP * PANEL_BYTES) as u32;
            let to = smem.bytes(slot * Self::STAGE as u32).bytes(strip * bytes);
            Self::clear(to);
            to
        };
        let close = |ring: (u32, u32)| {
            warp::sync(u32::MAX);
            if lane == 0 {
                full(ring.0).arrive();
            }
            let next = Self::next;
            if FilledTile::<CHUNKS, F>::TURNS == 2 { next(next(ring)) } else { next(ring) }
        };
        // All stages are free at first.
        let mut ring = (stage, 1);
        let mut to = open(ring, stage);
        while step < end {
            warp::nounroll();
            let next = values_of(&later, true);
            ahead = ahead.at(burst);
            let last = words_from(ahead, step + 2 * HELD as u32);
            unroll!(i < HELD, {
                let now = step + i as u32;
                while now == stop {
                    warp::nounroll();
                    ring = close(ring);
                    stage += turns;
                    to = open(ring, stage);
                    at_head += 1;
                    if at_head.is_multiple_of(32) {
                        // Each lane's own value: the shuffle waits for the load here. After the branch, every iteration
                        // would wait.
                        known = warp::shfl_xor(head_words(at_head), 0);
                    }
                    stop = stop_of(known, at_head);
                }
                if now < end {
                    to.bytes(places[i]).cast::<u16>().st(laid[i]);
                }
            });
            (places, laid, later) = (places_of(&later), next, last);
            step += HELD as u32;
        }
        // The stages after the last entry.
        loop {
            warp::nounroll();
            ring = close(ring);
            stage += turns;
            if stage >= count {
                break;
            }
            open(ring, stage);
        }
        F::L::wait_own();
    }

    /// Zeroes this warp's part of a stage, at `to`.
    #[inline(always)]
    fn clear(to: Shared<u8>) {
        unroll!(i < FilledTile::<CHUNKS, F>::STRIP * PANEL_BYTES / 512, {
            let of_warp = to.bytes(i as u32 * 512).cast::<[u32; 4]>();
            of_warp.at(gpu::thread() % 32).st([0; 4]);
        });
        warp::sync(u32::MAX);
    }
}
