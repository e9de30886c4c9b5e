//! One query of each head with cached keys and values (flash-decoding; the online softmax of FlashAttention, arXiv
//! 2205.14135). A thread block processes chunks of the keys of a sequence and a head; each of its four warps takes
//! every fourth tile. The query heads that share the keys are the rows of an `mma`. The last thread block to arrive
//! adds the partial sums of the chunks.

mod out;
mod tile;
mod work;

use crate::device::mma::MmaElem;
use crate::device::prelude::*;
use crate::families::attention::abi::*;
use tile::{Queries, Sums};
use work::{Chunk, Work};

buffers! {
    // `ops::attention::cached` checks the shapes of queries, caches, new rows, lengths and output.
    // `DecodeLaunch` checks their alignment, and allocates sums and counters for the max number of
    // chunks. The body clamps lengths to the capacity.
    unsafe DecodeParams {
        lengths: u32, Fresh;
        q: u16, Fresh;
        out: [u32; 2], ReadWrite;
        fresh[]: [u32; 4], Fresh;
        cache[]: [u32; 4], ReadWrite;
        partial: [u32; 4], Fresh;
        stats: [u32; 2], Fresh;
        counters: u32, Fresh;
    }
}

/// Slot of a warp's ring, and parity of its phase.
type Place = (u32, u32);

/// Returns lane and warp, recomputed at each call.
#[inline(always)]
fn place() -> (u32, u32) {
    gpu::lane_and_warp()
}

impl<const CHUNKS: usize, L: Loader> Decode<CHUNKS, L> {
    /// Returns the shared address of a warp's ring.
    #[inline(always)]
    fn ring(warp: u32) -> Shared<u8> {
        // SAFETY: `Decode::SHARED_BYTES` includes the rings of all warps.
        unsafe { Shared::dynamic(warp * Self::RING) }
    }

    #[inline(always)]
    fn full(warp: u32, slot: u32) -> Shared<Mbarrier> {
        // SAFETY: `Decode::SHARED_BYTES` includes the barriers of all warps.
        let barriers = unsafe { Shared::<Mbarrier>::dynamic(Self::BARRIERS) };
        barriers.at(warp * DECODE_SLOTS + slot)
    }

    #[inline(always)]
    fn next((slot, parity): Place) -> Place {
        if slot + 1 == DECODE_SLOTS { (0, parity ^ 1) } else { (slot + 1, parity) }
    }

    /// Returns the first key of tile `j` of this warp.
    #[inline(always)]
    fn key(chunk: &Chunk, warp: u32, j: u32) -> u32 {
        chunk.from + (warp + j * DECODE_WARPS) * Self::KEYS
    }

    /// Starts the copies of this warp's tile `i / 2`: of its keys, or of its values if `i` is odd. The whole warp calls
    /// it.
    #[inline(always)]
    fn fetch(p: &DecodeParams, at: Maps, chunk: &Chunk, [warp, i, slot]: [u32; 3]) {
        if !L::BY_ONE || warp::elect_one() {
            let lane = if L::BY_ONE { 0 } else { place().0 };
            let key = Self::key(chunk, warp, i / 2);
            let map = at.map(i % 2);
            let full = Self::full(warp, slot);
            let to = Self::ring(warp).bytes(slot * Self::SLOT);
            L::expect(full, lane, Self::SLOT, false);
            let copy = |words: &MapWords| {
                let shape = Shape { rows: Self::KEYS as usize, row_bytes: PANEL_BYTES, element: 2 };
                unroll!(c < CHUNKS, most 4, {
                    let to = to.bytes(c as u32 * Self::BOX);
                    let place = [c as u32 * 64, key, chunk.pair];
                    L::tile(Team::warp(), to, (map, words), place, shape, full);
                });
            };
            // The copy engine reads the map at its address.
            if L::BY_ONE || i % 2 == 0 {
                copy(&p.k_map);
            } else {
                copy(&p.v_map);
            }
            L::started(full, lane);
        }
    }

    /// Processes this warp's tiles of a chunk.
    #[inline(always)]
    fn walk<E: MmaElem>(
        p: &DecodeParams,
        at: Maps,
        chunk: &Chunk,
        ring: &mut Place,
    ) -> Sums<CHUNKS> {
        let (lane, warp) = place();
        let tiles = (chunk.to - chunk.from).div_ceil(Self::KEYS);
        let tiles = (tiles + DECODE_WARPS - 1 - warp) / DECODE_WARPS;
        let mut ahead = *ring;
        let mut j = 0;
        while j < 2 * tiles && j < DECODE_SLOTS {
            Self::fetch(p, at, chunk, [warp, j, ahead.0]);
            ahead = Self::next(ahead);
            j += 1;
        }
        let queries = Queries::load(p, chunk.pair, lane);
        let mut sums = Sums::none();
        j = 0;
        while j < tiles {
            let key = Self::key(chunk, warp, j);
            let slot = Self::ring(warp).bytes(ring.0 * Self::SLOT);
            // The row that this step appends to the cache, if it is in this tile.
            let fresh = (chunk.length - 1).wrapping_sub(key);
            let fresh = p.fresh[0] != 0 && fresh < Self::KEYS;
            let row = Self::load_cg(p, chunk.pair, fresh, lane);
            Self::full(warp, ring.0).wait(ring.1);
            if fresh {
                Self::put_fresh(p, chunk, key, slot, row, false);
            }
            let weights = sums.score::<E>(&queries, slot, chunk.to.wrapping_sub(key), p.scale);
            // All lanes have read the slot, so it may be overwritten.
            warp::sync(u32::MAX);
            if 2 * j + DECODE_SLOTS < 2 * tiles {
                Self::fetch(p, at, chunk, [warp, 2 * j + DECODE_SLOTS, ring.0]);
            }
            *ring = Self::next(*ring);
            let slot = Self::ring(warp).bytes(ring.0 * Self::SLOT);
            Self::full(warp, ring.0).wait(ring.1);
            if fresh {
                Self::put_fresh(p, chunk, key, slot, row, true);
            }
            if key + Self::KEYS > chunk.to {
                Self::clear_values(slot, chunk.to - key, lane);
            }
            sums.weigh::<E>(&weights, slot);
            warp::sync(u32::MAX);
            if 2 * j + 1 + DECODE_SLOTS < 2 * tiles {
                Self::fetch(p, at, chunk, [warp, 2 * j + 1 + DECODE_SLOTS, ring.0]);
            }
            *ring = Self::next(*ring);
            j += 1;
        }
        sums
    }

    /// Loads a lane's 16 bytes of the key or the value that this step appends; zeros unless `fresh`.
    #[inline(always)]
    fn load_cg(p: &DecodeParams, pair: u32, fresh: bool, lane: u32) -> [u32; 4] {
        let own = fresh && lane < 16 * CHUNKS as u32;
        let (piece, values) = Self::piece(lane);
        let (base, row) =
            if values { (p.fresh(1), p.fresh_row[1]) } else { (p.fresh(0), p.fresh_row[0]) };
        base.row(pair, row).at(piece).ld_if(own)
    }

    /// Returns the index of a lane's 16 bytes in a row, and whether they belong to the value.
    #[inline(always)]
    fn piece(lane: u32) -> (u32, bool) {
        let pieces = 8 * CHUNKS as u32;
        (lane % pieces, lane >= pieces)
    }

    /// Stores the rows that this step appends, over the rows that were copied to the slot, and to the cache. No other
    /// warp has a tile that contains them.
    #[inline(always)]
    fn put_fresh(
        p: &DecodeParams,
        chunk: &Chunk,
        key: u32,
        slot: Shared<u8>,
        row: [u32; 4],
        of_values: bool,
    ) {
        let (lane, _) = place();
        let (piece, values) = Self::piece(lane);
        let last = chunk.length - 1;
        let (cache, pair, each) = if values {
            (p.cache(1), p.cache_pair[1], p.cache_row[1])
        } else {
            (p.cache(0), p.cache_pair[0], p.cache_row[0])
        };
        if lane < 16 * CHUNKS as u32 && values == of_values {
            let boxed = slot.bytes(piece / 8 * Self::BOX);
            let place = frag::swizzle(last - key, piece % 8, PANEL_BYTES as u32);
            boxed.bytes(place).cast::<[u32; 4]>().st(row);
            cache.row(chunk.pair, pair).row(last, each).at(piece).st(row);
        }
        warp::sync(u32::MAX);
    }

    /// Sets values past the last key to zero: their contents times the weight 0 must be 0.
    #[inline(always)]
    fn clear_values(slot: Shared<u8>, keys: u32, lane: u32) {
        let mut at = keys * PANEL_BYTES as u32 + lane * 16;
        while at < Self::BOX {
            unroll!(c < CHUNKS, most 4, {
                let values = slot.bytes(c as u32 * Self::BOX);
                values.bytes(at).cast::<[u32; 4]>().st([0; 4]);
            });
            at += 512;
        }
        warp::sync(u32::MAX);
    }
}

impl<W: WalkInfo, E: MmaElem, const CHUNKS: usize, L: Loader> Kernel<W, E, DecodeParams>
    for Decode<CHUNKS, L>
{
    #[inline(always)]
    unsafe fn run(p: &DecodeParams, at: Maps) {
        grid::launch_dependents();
        if gpu::thread() == 0 {
            let mut slot = 0;
            while slot < DECODE_WARPS * DECODE_SLOTS {
                Self::full(0, slot).init(L::arrivals(32, false));
                slot += 1;
            }
            barrier::init_fence();
            L::prefetch_maps::<2>(at);
        }
        gpu::sync_threads();
        grid::wait_dependency();
        let mut work = Work::new(p, Self::COLUMNS);
        let mut ring = (0, 0);
        let mut chunk = work.find(gpu::block_x());
        while chunk.chunks > 0 {
            let mut sums = Self::walk::<E>(p, at, &chunk, &mut ring);
            Self::store(p, &mut sums);
            gpu::sync_threads();
            Self::join::<E>(p, &chunk);
            // The next tiles are copied over these sums.
            if L::BY_ONE {
                barrier::fence_proxy_async();
            }
            gpu::sync_threads();
            chunk = work.find(work.item + gpu::grid_x());
        }
    }
}
