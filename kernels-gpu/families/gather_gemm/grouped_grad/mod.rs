//! Gradients of a stack of matrices. For each tile of each matrix four producer warps gather the rows of both operands
//! by the expert's slots, and two consumer warpgroups multiply, slots ascending. No sum is split, so every run gives
//! the same bits. The grid is persistent; an expert without slots gets zeros.

use crate::device::epilogue::Output;
use crate::device::fill::make_ring;
use crate::device::prelude::*;
use crate::device::store::StoreTile;
use crate::families::discover::abi::NO_TILE;
use crate::families::gather_gemm::abi::*;
use crate::families::gather_gemm::listed::{Share, Source};

buffers! {
    // `GradLaunch::run` checks the alignment of the operands, and `host/core/dynamic/grouped/weight.rs`
    // their shapes. The routing on the same stream writes a choice of an existing token for each
    // slot, and offsets up to the number of slots.
    unsafe GroupedGradParams {
        a: u16, ReadWrite;
        b: u16, ReadWrite;
        w: u8, ReadWrite;
        order: u32, Fresh;
        offsets: u32, Fresh;
    }
}

/// Registers of a producer thread and of a consumer thread: one producer and two consumer warpgroups use three times
/// 168.
const REGISTERS: [u32; 2] = [72, 216];
/// Slots of one `wgmma`, and of one warp's share of a stage.
const STEP: u32 = 16;

/// Work item: a tile of one expert's matrix.
#[derive(Clone, Copy)]
struct Work {
    expert: u32,
    row: u32,
    column: u32,
    /// First slot, and the one after the last.
    first: u32,
    end: u32,
}

impl<const CHUNKS: usize, A: AtomInfo> Stages for GroupedGrad<CHUNKS, A> {
    /// A stage holds A's two shared-memory tiles of 64 columns, then B's.
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<const CHUNKS: usize, A: Multiply> GroupedGrad<CHUNKS, A> {
    /// Returns work item `index`. Neighbouring items share rows of A, then the expert.
    #[inline(always)]
    fn work(p: &GroupedGradParams, index: u32) -> Work {
        let (above, across) = p.across.of(index);
        let (expert, down) = p.down.of(above);
        let inside = index < p.tiles;
        let at = p.offsets().at(expert);
        Work {
            expert,
            row: down * 128,
            column: across * Self::COLUMNS,
            first: at.ld_if(inside),
            end: at.at(1u32).ld_if(inside),
        }
    }

    /// Returns the slot at which a tile's stages end. Synchronous atoms have a stage even without slots: zeros are
    /// stored through it.
    #[inline(always)]
    fn end(first: u32, end: u32) -> u32 {
        if A::ASYNCHRONOUS { end } else { end.max(first + 1) }
    }

    /// Gathers with four warps, each 16 slots of a stage. A lane holds one choice of its warp; those of the next stage
    /// are prefetched.
    #[inline(always)]
    fn produce(p: &GroupedGradParams) {
        let thread = gpu::thread() - CONSUMER_WARPS * 32;
        let own = thread / 32 * STEP + thread % STEP;
        let mut ring = Ring::<Self>::producer();
        let mut index = gpu::block_x();
        let mut later = Self::work(p, index);
        while index < p.tiles {
            let work = later;
            index += gpu::grid_x();
            later = Self::work(p, index);
            let choice = |from: u32| {
                let slot = from + own;
                p.order().at(slot).ld_if(slot < work.end)
            };
            let mut next = choice(work.first);
            let mut from = work.first;
            while from < Self::end(work.first, work.end) {
                let token = p.top.of(next).0;
                next = choice(from + GRAD_DEPTH);
                ring.wait_empty();
                // This warp copies its step of 16 slots as a whole, with zeros for missing slots, or not at all.
                let first = from + thread / 32 * STEP;
                let to = Self::stage(ring.slot);
                if first + STEP <= work.end {
                    Self::bring::<true>(p, work, (from + own, token), to);
                } else if first < work.end {
                    Self::bring::<false>(p, work, (from + own, token), to);
                }
                ring.full().arrive_after_copies();
                ring.advance();
                from += GRAD_DEPTH;
            }
        }
        copy::cp_async_wait_all();
    }

    /// Starts this warp's copies of a stage: a slot has 256 bytes of A, for half a warp, and 256 or 512 bytes of B, for
    /// half a warp or a warp. Missing columns are not copied: the sums that they enter are not stored.
    #[inline(always)]
    fn bring<const WHOLE: bool>(
        p: &GroupedGradParams,
        work: Work,
        (slot, token): (u32, u32),
        to: Shared<u8>,
    ) {
        let lane = gpu::opaque_thread() % 32;
        let gather = |source: Source, lanes: u32, tokens: u32, to: Shared<u8>| {
            let row = if p.flags & tokens != 0 { token } else { slot };
            let row = if WHOLE || slot < work.end { row } else { NO_TILE };
            let share = Share { rows: STEP, lanes, slab: SMEM_TILE as u32 };
            source.gather::<WHOLE>(share, row, to);
        };
        let (m, n) = (16, 8 * CHUNKS as u32);
        let a = Source::new(p.a(), [work.row + lane % m * 8, p.m], p.lda_bytes);
        gather(a, m, GRAD_A_TOKENS, to);
        let b = Source::new(p.b(), [work.column + lane % n * 8, p.n], p.ldb_bytes);
        gather(b, n, GRAD_B_TOKENS, to.bytes(2 * SMEM_TILE as u32));
    }

    /// Multiplies and stores a warpgroup's 64 rows of every tile.
    #[inline(always)]
    fn consume<E: WgmmaElem>(p: &GroupedGradParams) {
        let group = warp::uniform(gpu::thread() / 128);
        let mut ring = Ring::<Self>::consumer();
        let mut index = gpu::block_x();
        let mut later = Self::work(p, index);
        while index < p.tiles {
            let work = later;
            index += gpu::grid_x();
            later = Self::work(p, index);
            let [first, end] = [work.first, work.end].map(warp::uniform);
            let mut acc = Acc::<CHUNKS>::zero();
            let (mut from, mut held) = (first, 0);
            while from < Self::end(first, end) {
                let slot = ring.wait_full();
                // `cp.async` wrote the gathered rows through the generic proxy.
                A::fence_proxy_async();
                A::fence(&mut acc);
                let used = end.saturating_sub(from).div_ceil(STEP);
                Self::multiply::<E>(&mut acc, slot, group, used);
                from += GRAD_DEPTH;
                if A::ASYNCHRONOUS || from < end {
                    ring.issued::<A, _>(&mut acc);
                } else {
                    held = slot;
                }
                ring.advance();
            }
            ring.drain::<A, _>(&mut acc);
            Self::epilogue::<E>(p, work, (group, held), end - first, &mut acc);
            if !A::ASYNCHRONOUS {
                Self::release(held);
            }
        }
    }

    #[inline(always)]
    fn multiply<E: WgmmaElem>(acc: &mut Acc<CHUNKS>, slot: u32, group: u32, used: u32) {
        let (smem, b_tile) = Self::operands(slot, group);
        let row = PANEL_BYTES as u32;
        unroll!(step < 4, {
            if (step as u32) < used {
                let deep = step as u32 * STEP * row;
                let a = smem.bytes(deep).descriptor(row, GRAD_DEPTH * row);
                let b = b_tile.bytes(deep).descriptor(row, SMEM_TILE as u32);
                A::mma::<E, CHUNKS, 1, 1>(acc, a, b);
            }
        });
    }

    #[inline(always)]
    fn epilogue<E: WgmmaElem>(
        p: &GroupedGradParams,
        work: Work,
        (group, held): (u32, u32),
        count: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        let first = if A::ASYNCHRONOUS {
            // SAFETY: `SHARED_BYTES` of the tile includes the output buffers.
            unsafe { Shared::dynamic(Self::OUT as u32) }
        } else {
            Self::stage(held)
        };
        let smem = first.bytes(group * SMEM_TILE as u32);
        A::exchange_quarters(acc, smem, 1 + group);
        let w = p.w().bytes(work.expert as u64 * p.m as u64 * p.ldw_bytes as u64);
        let o = Output::plain(w, p.ldw_bytes, p.n, warp::opaque(p.flags));
        let corner = [work.row + group * 64, work.column];
        StoreTile::<CHUNKS, PLAIN>::write::<E>(o, p.m, corner, (group, smem), count, acc);
    }
}

impl<W: WalkInfo, E: WgmmaElem, const CHUNKS: usize, A: Multiply> Kernel<W, E, GroupedGradParams>
    for GroupedGrad<CHUNKS, A>
{
    #[inline(always)]
    unsafe fn run(p: &GroupedGradParams, maps: Maps) {
        make_ring::<Self, CpAsync, 0>(maps, GRAD_PRODUCER_THREADS);
        grid::wait_dependency();
        grid::launch_dependents();
        roles!(A: REGISTERS, Self::produce(p), Self::consume::<E>(p));
    }
}
