//! A as bits and values, "load as sparse, compute as dense" (Flash-LLM, arXiv 2309.10285; SpInfer, EuroSys 2025): one
//! or several warps copy tiles as they lie into a ring of stages, warpgroups expand them into fragments in registers and
//! multiply 64 rows each. Every thread block has as many stages as the next: strips of C are cut along k wherever that
//! falls.

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

/// Barriers of arrival, twice: one round of each parity.
const ARRIVALS: u32 = 2 * BIT_STAGES as u32;

/// A place in the ring of stages, and the parity of the round; and the number of the stage by arrival, below
/// [`ARRIVALS`]. Barriers that say that a stage has arrived go round on their own: warps that take every third or sixth
/// stage see each round of theirs, however many stages the ring has.
#[derive(Clone, Copy)]
struct Ring {
    slot: u32,
    parity: u32,
    arrival: u32,
}

impl Ring {
    /// The first stage. Who fills it waits with parity 1, which passes on new barriers.
    #[inline(always)]
    fn first(parity: u32) -> Ring {
        Ring { slot: 0, parity, arrival: 0 }
    }

    /// The barrier that says that the stage has arrived, and the parity it has before.
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

/// A ring of stages of `GROUPS` tiles that warps fill, a stage each by turns.
trait Filled<const GROUPS: usize>: Stages {
    /// Whether the copy engine copies.
    const BY_ONE: bool;
    /// Whether it brings B, so that A may come ahead of it.
    const B_COPIED: bool;

    /// Starts the copies of one stage, but for those of B that the loader copies; every lane calls it.
    fn copy_a(p: &BitmapParams, piece: BitPiece, stage: u32, own: Starts, ring: Ring);

    /// Starts those of B, the last of a stage.
    fn copy_b(p: &BitmapParams, at: u64, piece: BitPiece, stage: u32, ring: Ring);

    /// Warp `own` of those `warps` that copy: its stages of all pieces; none of a warp behind them. Issuing the copies of a
    /// stage by `cp.async` takes one warp longer than the others need to multiply it.
    #[inline(always)]
    fn produce(p: &BitmapParams, at: u64, [own, warps]: [u32; 2]) {
        if own >= warps {
            return;
        }
        // A ring that starts empty: the first wait for a free stage passes.
        let mut ring = Ring::first(1);
        let mut later = p.piece(0);
        let mut next = first_starts::<GROUPS>(p);
        // The lists are the plan's own: they come while the launch ahead ends, and A that is kept too, as far as the ring
        // reaches.
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
                // On their way while these stages are copied.
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

/// Which of the warps that copy this one is, the same for all lanes, and how many copy into the ring.
#[inline(always)]
fn copier(p: &BitmapParams, multiply: u32, copiers: u32) -> [u32; 2] {
    if copiers == 32 {
        return [0, 1];
    }
    let own = warp::uniform((gpu::thread() - multiply) / 32);
    [own, copying_into(p.stages, copiers / 32)]
}

/// What the warpgroups take of a stage, a word each: the address of one's values; of places as bytes, the chunks in
/// front of its own, and from bit 16 on all. Without the copy engine the starts, as the plan has them, of each tile and
/// behind the last: copied, they arrive with the values.
#[inline(always)]
fn offsets<L: LoaderInfo>(slot: u32) -> u32 {
    let bytes = if L::BY_ONE { 16 } else { 20 };
    copy::dynamic_shared() + (BIT_STAGES * 16) as u32 + slot * bytes
}

/// Starts the copy of a stage's starts, of tile `tile` and those behind it. All lanes.
#[inline(always)]
fn bring_starts<const GROUPS: usize, L: LoaderInfo>(
    p: &BitmapParams,
    piece: BitPiece,
    tile: u32,
    slot: u32,
) {
    let lane = gpu::thread() % 32;
    if lane <= GROUPS as u32 {
        let from = p.starts + (tile as u64 + lane.min(piece.height) as u64) * 4;
        copy::cp_async_4(offsets::<L>(slot) + lane * 4, from);
    }
}

/// Units in front of the tile whose start lies `at` bytes behind the stage's first.
#[inline(always)]
fn units_before<L: LoaderInfo>(slot: u32, at: u32) -> u32 {
    let [first, own] = [0, at].map(|at| copy::ld_shared_b32(offsets::<L>(slot) + at));
    own - first
}

impl BitmapParams {
    /// This thread block's piece of a round; none past the last round.
    #[inline(always)]
    fn piece(&self, round: u32) -> BitPiece {
        let valid = round < self.rounds;
        let index = round * gpu::grid_x() + gpu::block_x();
        let at = self.pieces + index as u64 * size_of::<BitPiece>() as u64;
        let [row, column, tile, step] = global::ld_nc_v4(at, valid);
        let [place, stages, height, entries] = global::ld_nc_v4(at + 16, valid);
        let [first, parts, counter, reserved] = global::ld_nc_v4(at + 32, valid);
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

/// B of a stage; A lies behind the ring.
impl<const GROUPS: usize, const N: usize, const ALIGNED: bool, A, L> Stages
    for BitTile<GROUPS, N, ALIGNED, A, L>
{
    const COUNT: usize = BIT_STAGES;
    const STRIDE: usize = Self::B_BYTES;
    const FIRST_BARRIER: usize = 0;
    const FIRST_STAGE: usize = BIT_HEAD;
}

impl<const GROUPS: usize, const N: usize, const ALIGNED: bool, A, L: Loader>
    BitTile<GROUPS, N, ALIGNED, A, L>
{
    /// A of a stage: the words of the tiles, then their values.
    #[inline(always)]
    fn a(p: &BitmapParams, slot: u32) -> u32 {
        copy::dynamic_shared()
            + BIT_HEAD as u32
            + p.stages * Self::B_BYTES as u32
            + slot * p.slot_bytes
    }

    /// Address of the values of a warpgroup's tile; `at` is four times the number of the warpgroup.
    #[inline(always)]
    fn values(p: &BitmapParams, slot: u32, at: u32) -> u32 {
        if L::BY_ONE {
            return copy::ld_shared_b32(offsets::<L>(slot) + at);
        }
        Self::a(p, slot) + (GROUPS * BIT_BYTES) as u32 + units_before::<L>(slot, at) * 16
    }

    /// Makes the barriers, of those that free a stage for so many warps, and fetches the tensor map.
    #[inline(always)]
    fn set_up(at: u64, warps: u32) {
        // There are more threads than barriers.
        let slot = gpu::thread();
        if slot < BIT_STAGES as u32 {
            barrier::init(Self::full(slot), L::arrivals(32, !ALIGNED));
            barrier::init(Self::empty(slot), warps);
            barrier::init_fence();
        }
        if slot == 0 && ALIGNED {
            L::prefetch_maps::<1>(at);
        }
        gpu::sync_threads();
    }
}

impl<W: WalkInfo, E: ThinElem, const GROUPS: usize, const N: usize, const ALIGNED: bool, A, L>
    Kernel<W, E, BitmapParams> for BitTile<GROUPS, N, ALIGNED, A, L>
where
    A: MultiplyThin,
    L: Loader,
{
    #[inline(always)]
    unsafe fn run(p: &BitmapParams, at: u64) {
        Self::set_up(at, GROUPS as u32 * 4);
        if gpu::thread() >= GROUPS as u32 * 128 {
            Self::produce(p, at, copier(p, GROUPS as u32 * 128, Self::COPIERS));
        } else {
            grid::wait_dependency();
            grid::launch_dependents();
            Self::consume::<E>(p);
        }
    }
}
