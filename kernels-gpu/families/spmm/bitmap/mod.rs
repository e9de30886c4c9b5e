//! A as bits and values, "load as sparse, compute as dense" (Flash-LLM, arXiv 2309.10285; SpInfer, EuroSys 2025). One
//! or several producer warps copy compressed tiles into a ring of stages. Consumer warpgroups expand them to fragments
//! in registers, and multiply 64 rows each. All thread blocks have the same number of stages, so CTA tiles of C are
//! split along k wherever a boundary falls.

mod bytes;
mod consumer;
mod out;
mod producer;
mod starts;
mod warps;

use crate::device::prelude::*;
use crate::device::thin::{MultiplyThin, ThinElem};
use crate::families::spmm::abi::*;
use starts::{AHEAD, Starts, first_starts, of_stage, starts};

buffers! {
    // `Bitmaps` makes the lists from the words of A, allocates the workspaces for all slots and counters, and checks the
    // alignment and the strides. `ProductPlan` checks the shapes and the pattern.
    unsafe BitmapParams {
        words: [u32; 4], ReadWrite;
        values: [u32; 4], ReadWrite;
        starts: u32, ReadOnly;
        first: u32, ReadOnly;
        pieces: [u32; 4], ReadOnly;
        b: u16, ReadWrite;
        partial: [u32; 4], Fresh;
        counters: u32, Fresh;
    }
}

/// Period of arrival numbers: the arrival barriers twice, one round of each parity.
const ARRIVALS: u32 = 2 * BIT_STAGES as u32;

/// Position in the ring of stages, the parity of its round, and the arrival number of the stage, below [`ARRIVALS`].
/// Arrival barriers have a ring of their own. Warps that take every third or sixth stage therefore see each round of
/// their barriers, however many stages the ring has.
#[derive(Clone, Copy)]
struct Ring {
    slot: u32,
    parity: u32,
    arrival: u32,
}

impl Ring {
    /// Returns the first stage. The producer waits with parity 1, which passes on new barriers.
    #[inline(always)]
    fn first(parity: u32) -> Ring {
        Ring { slot: 0, parity, arrival: 0 }
    }

    /// Returns the barrier on which the stage arrives, and the parity that it has before.
    #[inline(always)]
    fn full(self) -> (u32, u32) {
        let second = self.arrival >= BIT_STAGES as u32;
        let number = if second { self.arrival - BIT_STAGES as u32 } else { self.arrival };
        (copy::dynamic_shared() + number * 8, second as u32)
    }

    #[inline(always)]
    fn advance(&mut self, stages: u32) {
        self.slot += 1;
        if self.slot == stages {
            self.slot = 0;
            self.parity ^= 1;
        }
        self.arrival += 1;
        if self.arrival == ARRIVALS {
            self.arrival = 0;
        }
    }
}

/// Ring of stages of `GROUPS` tiles each. Producer warps fill the stages round-robin.
trait Filled<const GROUPS: usize>: Stages {
    /// Whether the copy engine copies.
    const BY_ONE: bool;
    /// Whether the copy engine copies B, so that A can be copied ahead of it.
    const B_COPIED: bool;

    /// Starts the copies of one stage, except those of B by the loader. Every lane calls it.
    fn copy_a(p: &BitmapParams, piece: BitPiece, stage: u32, own: Starts, ring: Ring);

    /// Starts the loader's copies of B, the last ones of a stage.
    fn copy_b(p: &BitmapParams, at: Maps, piece: BitPiece, stage: u32, ring: Ring);

    /// Fills the stages of all pieces that belong to producer warp `own` of `warps`; later warps return at once.
    /// Issuing the `cp.async` copies of a stage takes one warp longer than the consumers need to multiply it.
    #[inline(always)]
    fn produce(p: &BitmapParams, at: Maps, [own, warps]: [u32; 2]) {
        if own >= warps {
            return;
        }
        // The ring starts empty: the first wait for a free stage passes.
        let mut ring = Ring::first(1);
        let mut later = p.piece(0);
        let mut next = first_starts::<GROUPS>(p);
        // The plan's lists are read while the previous kernel ends (PDL). A is copied then too if the plan keeps it,
        // for as many stages as the ring has.
        let mut early = 0;
        if Self::B_COPIED && p.flags & FLAG_A_KEPT != 0 {
            let mut ahead = ring;
            while early < p.stages && early < AHEAD && early < later.stages {
                let own = of_stage::<GROUPS>(next, early);
                Self::copy_a(p, later, early, own, ahead);
                ahead.advance(p.stages);
                early += 1;
            }
        }
        grid::wait_dependency();
        grid::launch_dependents();
        let mut turn = 0;
        let mut round = 0;
        while later.height != 0 {
            let piece = later;
            if round != 0 {
                next = starts::<GROUPS>(p, piece, 0);
            }
            round += 1;
            later = p.piece(round);
            let mut stage = 0;
            while stage < piece.stages {
                let now = next;
                // Loaded while these stages are copied.
                next = starts::<GROUPS>(p, piece, stage + AHEAD);
                let left = piece.stages - stage;
                let count = if left < AHEAD { left } else { AHEAD };
                let mut i = 0;
                while i < count {
                    if turn == own {
                        if early == 0 {
                            let starts = of_stage::<GROUPS>(now, i);
                            barrier::wait(Self::empty(ring.slot), ring.parity);
                            Self::copy_a(p, piece, stage + i, starts, ring);
                        } else {
                            early -= 1;
                        }
                        Self::copy_b(p, at, piece, stage + i, ring);
                    }
                    turn = if turn + 1 == warps { 0 } else { turn + 1 };
                    ring.advance(p.stages);
                    i += 1;
                }
                stage += AHEAD;
            }
        }
        if !Self::BY_ONE {
            copy::cp_async_wait_all();
        }
    }
}

/// Returns the index of this producer warp, uniform over its lanes, and the number of warps that copy into the ring.
#[inline(always)]
fn copier(p: &BitmapParams, multiply: u32, copiers: u32) -> [u32; 2] {
    if copiers == 32 {
        return [0, 1];
    }
    let own = warp::uniform((gpu::thread() - multiply) / 32);
    [own, copying_into(p.stages, copiers / 32)]
}

/// Returns the shared address of a stage's words. With the copy engine each warpgroup has one word: the address of its
/// values or, with byte positions, the number of chunks before its own, and from bit 16 on that of all. Without the
/// copy engine the words are the plan's starts of the tiles and the end of the last one; they are copied, and so arrive
/// with the values.
#[inline(always)]
fn offsets<L: LoaderInfo>(slot: u32) -> u32 {
    let bytes = if L::BY_ONE { 16 } else { 20 };
    copy::dynamic_shared() + (BIT_STAGES * 16) as u32 + slot * bytes
}

/// Starts the copies of a stage's starts, from tile `tile` on. All lanes call it.
#[inline(always)]
fn bring_starts<const GROUPS: usize, L: LoaderInfo>(
    p: &BitmapParams,
    piece: BitPiece,
    tile: u32,
    slot: u32,
) {
    let lane = gpu::thread() % 32;
    if lane <= GROUPS as u32 {
        let from = p.starts().at(tile as u64 + lane.min(piece.height) as u64);
        from.cp_async_4(offsets::<L>(slot) + lane * 4);
    }
}

/// Returns the units before a tile. Its start is stored `at` bytes after the first start of the stage.
#[inline(always)]
fn units_before<L: LoaderInfo>(slot: u32, at: u32) -> u32 {
    let [first, own] = [0, at].map(|at| copy::ld_shared_b32(offsets::<L>(slot) + at));
    own - first
}

impl BitmapParams {
    /// Returns this thread block's piece of a round, or a piece of zeros past the last round.
    #[inline(always)]
    fn piece(&self, round: u32) -> BitPiece {
        let valid = round < self.rounds;
        let index = round * gpu::grid_x() + gpu::block_x();
        let at = self.pieces().row(index, size_of::<BitPiece>() as u64);
        let [row, column, tile, step] = at.ld_if(valid);
        let [place, stages, height, entries] = at.at(1u32).ld_if(valid);
        let [first, parts, counter, reserved] = at.at(2u32).ld_if(valid);
        BitPiece {
            row,
            column,
            tile,
            step,
            place,
            stages,
            height,
            entries,
            first,
            parts,
            counter,
            reserved,
        }
    }
}

/// Stages hold B; A is stored after the ring.
impl<const GROUPS: usize, const N: usize, F> Stages for BitTile<GROUPS, N, F> {
    const COUNT: usize = BIT_STAGES;
    const STRIDE: usize = Self::B_BYTES;
    const FIRST_BARRIER: usize = 0;
    const FIRST_STAGE: usize = BIT_HEAD;
}

impl<const GROUPS: usize, const N: usize, F: BitForm<L: Loader>> BitTile<GROUPS, N, F> {
    /// Returns the shared address of A of a stage: the words of the tiles, then their values.
    #[inline(always)]
    fn a(p: &BitmapParams, slot: u32) -> u32 {
        copy::dynamic_shared()
            + BIT_HEAD as u32
            + p.stages * Self::B_BYTES as u32
            + slot * p.slot_bytes
    }

    /// Returns the address of the values of a warpgroup's tile; `at` is four times the index of the warpgroup.
    #[inline(always)]
    fn values(p: &BitmapParams, slot: u32, at: u32) -> u32 {
        if F::L::BY_ONE {
            return copy::ld_shared_b32(offsets::<F::L>(slot) + at);
        }
        Self::a(p, slot) + (GROUPS * BIT_BYTES) as u32 + units_before::<F::L>(slot, at) * 16
    }

    /// Initializes the barriers and prefetches the tensor map. `warps` warps release a stage.
    #[inline(always)]
    fn set_up(at: Maps, warps: u32) {
        // There are more threads than barriers.
        let slot = gpu::thread();
        if slot < BIT_STAGES as u32 {
            barrier::init(Self::full(slot), F::L::arrivals(32, !F::ALIGNED));
            barrier::init(Self::empty(slot), warps);
            barrier::init_fence();
        }
        if slot == 0 && F::ALIGNED {
            F::L::prefetch_maps::<1>(at);
        }
        gpu::sync_threads();
    }
}

impl<W: WalkInfo, E: ThinElem, const GROUPS: usize, const N: usize, F> Kernel<W, E, BitmapParams>
    for BitTile<GROUPS, N, F>
where
    F: BitForm<A: MultiplyThin, L: Loader>,
{
    #[inline(always)]
    unsafe fn run(p: &BitmapParams, at: Maps) {
        Self::set_up(at, GROUPS as u32 * 4);
        if gpu::thread() >= GROUPS as u32 * 128 {
            Self::produce(p, at, copier(p, GROUPS as u32 * 128, Self::PRODUCER_THREADS));
        } else {
            grid::wait_dependency();
            grid::launch_dependents();
            Self::consume::<E>(p);
        }
    }
}
