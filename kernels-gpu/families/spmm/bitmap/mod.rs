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
use crate::device::stages::share_barriers;
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

/// The shared memory of the thread block.
#[inline(always)]
fn shared() -> Shared<u8> {
    // SAFETY: the host launches with the `SHARED_BYTES` of the tile, and chooses a number of stages that fit.
    unsafe { Shared::dynamic(0) }
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
    fn full(self) -> (Shared<Mbarrier>, u32) {
        let second = self.arrival >= BIT_STAGES as u32;
        let number = if second { self.arrival - BIT_STAGES as u32 } else { self.arrival };
        (shared().cast().at(number), second as u32)
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

/// Ring of stages of `GROUPS` tiles each. Producer warps fill the stages round-robin. Stages hold B; A is stored after
/// the ring.
trait Filled<const GROUPS: usize>: Stages {
    type L: Loader;
    /// Whether the loader copies B.
    const ALIGNED: bool;

    /// Returns the barrier on which a stage arrives, and the parity that it has before.
    fn full_of(ring: Ring) -> (Shared<Mbarrier>, u32);

    /// Starts the copies of one stage, except those of B by the loader. Every lane calls it.
    fn copy_a(p: &BitmapParams, piece: BitPiece, stage: u32, own: Starts, ring: Ring);

    /// Starts the loader's copies of B, the last ones of a stage.
    fn copy_b(p: &BitmapParams, at: Maps, piece: BitPiece, stage: u32, ring: Ring);

    /// Returns the address of A of a stage.
    #[inline(always)]
    fn a(p: &BitmapParams, slot: u32) -> Shared<u8> {
        Self::stage(0).bytes(p.stages * Self::STRIDE as u32).bytes(slot * p.slot_bytes)
    }

    /// Waits until a stage has arrived.
    #[inline(always)]
    fn wait_for(ring: Ring) {
        let (full, parity) = Self::full_of(ring);
        full.wait(parity);
    }

    /// Releases stages without rows for this warpgroup.
    #[inline(always)]
    fn pass(p: &BitmapParams, ring: &mut Ring, stages: u32) {
        let mut stage = 0;
        while stage < stages {
            Self::wait_for(*ring);
            Self::release(ring.slot);
            ring.advance(p.stages);
            stage += 1;
        }
    }

    /// Starts a thread block with this many threads that consume and that produce. Producers fill all stages. Returns
    /// true in the threads that consume. `warps` warps release a stage.
    #[inline(always)]
    fn start(p: &BitmapParams, at: Maps, [consumers, producers]: [u32; 2], warps: u32) -> bool {
        share_barriers((consumers + producers) / 32, BIT_STAGES as u32, |slot| {
            Self::full(slot).init(Self::L::arrivals(32, !Self::ALIGNED));
            Self::empty(slot).init(warps);
        });
        if gpu::thread() == 0 && Self::ALIGNED {
            Self::L::prefetch_maps::<1>(at);
        }
        gpu::sync_threads();
        if gpu::thread() >= consumers {
            Self::produce(p, at, copier(p, consumers, producers));
            return false;
        }
        grid::wait_dependency();
        grid::launch_dependents();
        true
    }

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
        if Self::L::BY_ONE && Self::ALIGNED && p.flags & FLAG_A_KEPT != 0 {
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
                            Self::empty(ring.slot).wait(ring.parity);
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
        if !Self::L::BY_ONE {
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
fn offsets<L: LoaderInfo>(slot: u32) -> Shared<u32> {
    let words = if L::BY_ONE { 4 } else { 5 };
    shared().bytes((BIT_STAGES * 16) as u32).cast().at(slot * words)
}

/// Provides the words of [`offsets`] for a stage from tile `tile` on: with the copy engine `word` of each warpgroup. All
/// lanes that copy call it.
#[inline(always)]
fn bring_starts<const GROUPS: usize, L: LoaderInfo>(
    p: &BitmapParams,
    piece: BitPiece,
    (tile, slot): (u32, u32),
    word: impl Fn(usize) -> u32,
) {
    let lane = gpu::thread() % 32;
    let to = offsets::<L>(slot);
    if L::BY_ONE {
        let mut words = [0; 4];
        unroll!(j < GROUPS, most 4, { words[j] = word(j) });
        to.cast::<[u32; 4]>().st(words);
    } else if lane <= GROUPS as u32 {
        let from = p.starts().at(tile as u64 + lane.min(piece.height) as u64);
        from.cp_async_4(to.at(lane));
    }
}

/// Returns the units before tile `tile` of a stage.
#[inline(always)]
fn units_before<L: LoaderInfo>(slot: u32, tile: u32) -> u32 {
    let [first, own] = [0, tile].map(|tile| offsets::<L>(slot).at(tile).ld());
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

impl<const GROUPS: usize, const N: usize, F> Stages for BitTile<GROUPS, N, F> {
    const COUNT: usize = BIT_STAGES;
    const STRIDE: usize = Self::B_BYTES;
    const FIRST_BARRIER: usize = 0;
    const FIRST_STAGE: usize = BIT_HEAD;
}

impl<const GROUPS: usize, const N: usize, F: BitForm<A: Multiply, L: Loader>>
    BitTile<GROUPS, N, F>
{
    /// Returns the address of the values of a warpgroup's tile. A of a stage is the words of the tiles, then their
    /// values.
    #[inline(always)]
    fn values(p: &BitmapParams, slot: u32, group: u32) -> Shared<u16> {
        if F::L::BY_ONE {
            // SAFETY: the producer has stored the address there.
            return unsafe { Shared::new(offsets::<F::L>(slot).at(group).ld()) };
        }
        let words = (GROUPS * BIT_BYTES) as u32;
        Self::a(p, slot).bytes(words + units_before::<F::L>(slot, group) * 16).cast()
    }
}

impl<W: WalkInfo, E: ThinElem, const GROUPS: usize, const N: usize, F> Kernel<W, E, BitmapParams>
    for BitTile<GROUPS, N, F>
where
    F: BitForm<A: MultiplyThin, L: Loader>,
{
    #[inline(always)]
    unsafe fn run(p: &BitmapParams, at: Maps) {
        let threads = [GROUPS as u32 * 128, Self::PRODUCER_THREADS];
        if Self::start(p, at, threads, GROUPS as u32 * 4) {
            Self::consume::<E>(p);
        }
    }
}
