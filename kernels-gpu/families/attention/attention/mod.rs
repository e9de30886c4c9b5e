//! Attention at the entries of a mask on Tensor Cores (the online softmax of FlashAttention, arXiv 2205.14135). The
//! grid is persistent. A work item is 128 queries of a head and a list of tiles of 128 keys. A tile is two pieces of 64
//! adjacent keys, at any two positions. Scores exist in registers only. With `wgmma` (the pipeline of FlashAttention-3,
//! arXiv 2407.08608), warps 0 to 7 are two consumer warpgroups of 64 queries each ([`consumer`]). Thread 256 is the
//! producer:
//!
//! ```text
//! producer   Q to its own buffer; K0 | K1 V0 | K2 V1 | ... to a ring of 5 slots, a tile each (TMA)
//! consumer   issue S = Q K[j]^T (both in shared memory) and O += P V[j-1] (P in registers, V in shared memory)
//!            wait for S -> release K[j] -> mask, max, exponentials of S -> wait for O -> release V[j-1]
//!            rescale O, P = S rounded to the element type
//! end        O / sum: registers -> output buffer of the warpgroup -> global, while the next Q, K and V are copied
//! ```
//!
//! All operands in shared memory are tiles of 64 rows x 128 bytes (128-byte swizzle). K is stored chunk by chunk (64
//! elements of the head), so that both pieces of 64 keys are one operand of 128 rows. V is stored piece by piece, and
//! its products read it contiguous along n. Mask bits (8 bytes a thread and tile) go from global memory to registers.
//! Unlike FlashAttention-3, no named barrier makes the consumer warpgroups alternate.
//!
//! With `mma.sync` (the pipeline of FlashAttention-2, arXiv 2307.08691), four warps alternate between copies and
//! products ([`together`]).

mod consumer;
mod out;
mod softmax;
mod together;

use crate::device::fill::make_ring;
use crate::device::prelude::*;
use crate::families::attention::abi::*;

/// Registers of a thread of the producer warpgroup and of the consumer warpgroups: 40 + 2 x 232 is three times the 168
/// with which they start.
const REGISTERS: [u32; 2] = [40, 232];

buffers! {
    // `ops::attention` checks the shapes of queries, keys, values and output, and `AttentionLaunch`
    // their alignment. The plan, or the module that lists masks, makes the work list, and allocates
    // slots and counters for all of its parts.
    unsafe AttentionParams {
        work: [u32; 4], Fresh;
        tiles: [u32; 4], Fresh;
        masks: [u32; 2], Fresh;
        out: u8, ReadWrite;
        log_sum: f32, ReadWrite;
        partial: [u32; 4], Fresh;
        counters: u32, Fresh;
    }
}

/// Position in the ring: index of a stage, and parity of the phase of its mbarriers (CUTLASS: `PipelineState`).
type Place = (u32, u32);

/// Returns this thread block's queries of a round; `row` is `NO_STRIP` past the last round.
#[inline(always)]
fn queries(p: &AttentionParams, round: u32) -> Queries {
    let valid = round < p.rounds;
    let index = round * gpu::grid_x() + gpu::block_x();
    let at = p.work().row(index, size_of::<Queries>() as u64);
    let [row, head, key_head, tile] = at.ld_if(valid);
    let [tiles, first, parts, counter] = at.at(1u32).ld_if(valid);
    Queries {
        row: if valid { row } else { NO_STRIP },
        head,
        key_head,
        tile,
        tiles,
        first,
        parts,
        counter,
    }
}

impl<const CHUNKS: usize, A: AtomInfo, L> Stages for Attention<CHUNKS, A, L> {
    const COUNT: usize = Self::SLOTS;
    const STRIDE: usize = Self::SLOT;
    const FIRST_BARRIER: usize = Self::BARRIERS;
    const FIRST_STAGE: usize = Self::RING;
    const BARRIERS_EACH: usize = Self::SLOTS + 1;
}

impl<const CHUNKS: usize, A: AtomInfo, L> Attention<CHUNKS, A, L> {
    /// Returns the shared address of two words for the split-K fix-up of the warpgroups.
    #[inline(always)]
    fn scratch() -> Shared<u32> {
        // SAFETY: `Attention::SHARED_BYTES` includes `SCRATCH` bytes after the barriers.
        unsafe { Shared::dynamic((Self::BARRIERS + (Self::SLOTS + 1) * 16) as u32) }
    }

    /// Returns the shared address of 64 elements, `chunk`, of the queries of a half.
    #[inline(always)]
    fn query_tile(half: u32, chunk: u32) -> Shared<u8> {
        // SAFETY: `Attention::SHARED_BYTES` includes the queries before the ring.
        unsafe { Shared::dynamic((half * CHUNKS as u32 + chunk) * SMEM_TILE as u32) }
    }
}

impl<const CHUNKS: usize> Attention<CHUNKS> {
    /// Index of the barriers of the queries.
    const QUERIES: u32 = Self::SLOTS as u32;

    /// Producer, one thread: starts all copies. Keys of the first tile come first, then keys of the next tile and
    /// values of this one alternate, in the order of the products. The buffer of the queries has its own two mbarriers.
    /// It is empty after the scores of the last tile, so the next queries are copied during the epilogue.
    #[inline(always)]
    fn produce(p: &AttentionParams, at: Maps) {
        // The ring starts empty: the first wait for a free slot passes.
        let mut ring = (0, 1);
        let mut queries_parity = 1;
        let mut round = 0;
        let mut later = queries(p, 0);
        while later.row != NO_STRIP {
            let now = later;
            round += 1;
            later = queries(p, round);
            let mut record = p.tiles().at(now.tile);
            let mut keys = record.cast::<[u32; 2]>().ld_if(now.tiles > 0);
            if now.tiles == 0 {
                continue;
            }
            let full = Self::full(Self::QUERIES);
            Self::empty(Self::QUERIES).wait(queries_parity);
            queries_parity ^= 1;
            full.arrive_expect_tx(Self::BYTES as u32);
            unroll!(half < 2, {
                unroll!(c < CHUNKS, most 4, {
                    let to = Self::query_tile(half as u32, c as u32);
                    let row = now.row + (half * HALF) as u32;
                    at.map(0).load_3d(to, [c as u32 * 64, row, now.head], full);
                });
            });
            let mut before = keys;
            let mut j = 0;
            while j <= now.tiles {
                let this = keys;
                record = record.at(1u32);
                keys = record.cast::<[u32; 2]>().ld_if(j + 1 < now.tiles);
                if j < now.tiles {
                    // Each chunk of the head stores its two pieces contiguously: 128 rows of the operand.
                    Self::copy_tile(at.map(1), this, now.key_head, ring, |piece, c| c * 2 + piece);
                    ring = Self::next(ring);
                }
                if j > 0 {
                    Self::copy_tile(at.map(2), before, now.key_head, ring, |piece, c| {
                        piece * CHUNKS + c
                    });
                    ring = Self::next(ring);
                }
                before = this;
                j += 1;
            }
        }
    }

    /// Starts the copies of a tile. `place` returns the shared-memory tile of the slot for a chunk of a piece.
    #[inline(always)]
    fn copy_tile(
        map: TensorMap,
        keys: [u32; 2],
        head: u32,
        (slot, parity): Place,
        place: impl Fn(usize, usize) -> usize,
    ) {
        let full = Self::full(slot);
        Self::empty(slot).wait(parity);
        full.arrive_expect_tx(Self::BYTES as u32);
        unroll!(piece < 2, {
            unroll!(c < CHUNKS, most 4, {
                let to = Self::stage(slot).bytes((place(piece, c) * SMEM_TILE) as u32);
                map.load_3d(to, [c as u32 * 64, keys[piece], head], full);
            });
        });
    }
}

impl<W: WalkInfo, E: WgmmaElem, const CHUNKS: usize> Kernel<W, E, AttentionParams>
    for Attention<CHUNKS>
{
    #[inline(always)]
    unsafe fn run(p: &AttentionParams, at: Maps) {
        grid::launch_dependents();
        make_ring::<Self, Tma, 3>(at, 1);
        grid::wait_dependency();
        roles!(
            REGISTERS,
            if gpu::thread() == CONSUMER_WARPS * 32 {
                Self::produce(p, at);
            },
            Self::consume::<E>(p)
        );
    }
}

impl<W: WalkInfo, E: WgmmaElem, const CHUNKS: usize, L: Loader> Kernel<W, E, AttentionParams>
    for Attention<CHUNKS, MmaSync, L>
{
    #[inline(always)]
    unsafe fn run(p: &AttentionParams, at: Maps) {
        grid::launch_dependents();
        Self::run_together::<E>(p, at);
    }
}
