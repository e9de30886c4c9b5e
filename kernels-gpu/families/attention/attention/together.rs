//! Four warps that copy and multiply by turns, each with 16 queries of either half. Both halves multiply what is read
//! of keys and values once. The keys of a tile are taken piece by piece: scores of 128 would take all registers.

use super::softmax::{Entries, Rows, Weights, pack, shrink, softmax};
use super::{onward, queries};
use crate::device::prelude::*;
use crate::families::attention::abi::*;

/// Warps of a thread block.
const WARPS: u32 = 4;
/// What is copied to a slot or to the place of the queries, in boxes of 64 elements a row.
const PIECE: Shape = Shape { rows: ATTENTION_PIECE, row_bytes: PANEL_BYTES, element: 2 };
/// The queries of a warp of either half.
const OWN_QUERIES: Shape = Shape { rows: HALF / 4, row_bytes: PANEL_BYTES, element: 2 };
/// Both fragments of [`MmaSync::mma_two`].
const BOTH: u32 = MmaSync::FIRST | MmaSync::SECOND;

/// The piece of keys that is multiplied, and what is behind it.
#[derive(Clone, Copy)]
struct Pieces {
    /// Number of the tile that it is of.
    number: u32,
    /// Tiles from that one on; 0 behind the last piece.
    left: u32,
    /// Words of the [`KeyTile`].
    tile: [u32; 4],
    /// Which piece of its tile it is.
    side: u32,
}

impl Pieces {
    #[inline(always)]
    fn first(p: &AttentionParams, now: Queries) -> Self {
        let tile = Self::load(p, now.tile, now.tiles > 0);
        Pieces { number: now.tile, left: now.tiles, tile, side: 0 }
    }

    #[inline(always)]
    fn load(p: &AttentionParams, number: u32, valid: bool) -> [u32; 4] {
        let at = p.tiles + number as u64 * size_of::<KeyTile>() as u64;
        global::load_v4_fresh(at, valid)
    }

    /// Whether the next piece is of the same tile. A second one that begins past the last key is none.
    #[inline(always)]
    fn stays(&self, p: &AttentionParams) -> bool {
        self.side == 0 && self.tile[1] < (p.k_map[MAP_EXTENTS] >> 32) as u32
    }

    /// Loads the tile of the next piece where it is another one, long before it is used.
    #[inline(always)]
    fn look_ahead(&self, p: &AttentionParams) -> [u32; 4] {
        Self::load(p, self.number + 1, !self.stays(p) && self.left > 1)
    }

    /// The next piece, whose tile has been looked at.
    #[inline(always)]
    fn next(self, p: &AttentionParams, ahead: [u32; 4]) -> Self {
        if self.stays(p) {
            Pieces { side: 1, ..self }
        } else {
            Pieces { number: self.number + 1, left: self.left - 1, tile: ahead, side: 0 }
        }
    }

    #[inline(always)]
    fn key(&self) -> u32 {
        if self.side == 0 { self.tile[0] } else { self.tile[1] }
    }

    /// The entries of either half.
    #[inline(always)]
    fn entries(&self, p: &AttentionParams) -> Both {
        let own = gpu::rematerialize_thread() % 128 * 8 + self.side * 4;
        [self.tile[2], self.tile[3]].map(|mask| {
            let at = p.masks + mask as u64 * ATTENTION_MASK as u64 + own as u64;
            Entries { mask, bits: [global::load_b32_fresh(at, self.left > 0 && mask < MASK_LIMIT)] }
        })
    }
}

/// The entries of either half.
type Both = [Entries<1>; 2];

/// Which halves have entries for this warp, by the numbers of [`MmaSync::mma_two`].
#[inline(always)]
fn halves_of(entries: Both) -> u32 {
    let own = entries.map(|half| warp::ballot(half.mask == MASK_ALL || half.bits[0] != 0) != 0);
    own[0] as u32 * MmaSync::FIRST + own[1] as u32 * MmaSync::SECOND
}

/// Where in the ring the next piece is copied to, and where the next one is multiplied.
struct Places<S> {
    ahead: Ring<S>,
    now: Ring<S>,
}

/// A warp's sums of either half.
struct Sums<const CHUNKS: usize> {
    out: [Acc<CHUNKS>; 2],
    rows: [Rows; 2],
}

impl<const CHUNKS: usize, L: Loader> Attention<CHUNKS, MmaSync, L> {
    /// All queries of this thread block. `at`: the address of the parameters.
    #[inline(always)]
    pub(super) fn run_together<E: WgmmaElem>(p: &AttentionParams, at: u64) {
        if gpu::thread() == 0 {
            Self::make_barriers(L::fills(Self::THREADS), WARPS);
            L::prefetch_maps::<3>(at);
        }
        gpu::sync_threads();
        grid::wait_dependency();
        let mut ring = Places { ahead: Ring::producer(), now: Ring::consumer() };
        let mut round = 0;
        let mut now = queries(p, 0);
        while now.row != NO_STRIP {
            let mut sums = Sums { out: [Acc::zero(); 2], rows: [Rows::NONE; 2] };
            Self::walk_pieces::<E>(p, at, now, &mut ring, &mut sums);
            // Again, and the next ones not earlier: sums and scores leave no registers for them.
            now = queries(p, round);
            round += 1;
            let later = queries(p, round);
            unroll!(half < 2, {
                let rows = sums.rows[half];
                Self::epilogue::<E>(p, now, half as u32, &mut sums.out[half], rows);
            });
            now = later;
        }
    }

    /// All pieces of keys of these queries. The next piece's keys are copied behind the scores of this one, its values
    /// behind the values of this one: the slots are free then.
    #[inline(always)]
    fn walk_pieces<E: WgmmaElem>(
        p: &AttentionParams,
        at: u64,
        now: Queries,
        ring: &mut Places<Self>,
        sums: &mut Sums<CHUNKS>,
    ) {
        let mut this = Pieces::first(p, now);
        let mut entries = this.entries(p);
        let (keys, values) = ((at + 128, &p.k_map), (at + 256, &p.v_map));
        if this.left > 0 {
            Self::copy_piece(keys, [this.key(), now.key_head], ring, |full| {
                Self::copy_queries(p, at, now, full)
            });
            Self::copy_piece(values, [this.key(), now.key_head], ring, |_| ());
        }
        while this.left > 0 {
            let ahead = this.look_ahead(p);
            let halves = halves_of(entries);
            let mut scores = [Acc::<1>::zero(); 2];
            let slot = ring.now.wait_full();
            Self::score_pieces::<E>(&mut scores, slot, halves);
            Self::release(slot);
            ring.now.advance();
            let next = this.next(p, ahead);
            if next.left > 0 {
                Self::copy_piece(keys, [next.key(), now.key_head], ring, |_| ());
            }
            let mut weights = [[[[0; 4]; STEPS]; 1]; 2];
            unroll!(half < 2, {
                if halves >> half & 1 != 0 {
                    let rows = &mut sums.rows[half];
                    let by = softmax(&mut scores[half], entries[half], rows, p.scale);
                    shrink(&mut sums.out[half], by);
                    weights[half] = pack::<E, 1>(&scores[half]);
                }
            });
            entries = next.entries(p);
            let slot = ring.now.wait_full();
            Self::weigh_pieces::<E>(&mut sums.out, slot, &weights, halves);
            Self::release(slot);
            ring.now.advance();
            if next.left > 0 {
                Self::copy_piece(values, [next.key(), now.key_head], ring, |_| ());
            }
            this = next;
        }
    }

    /// Starts the copy of the keys or values from `place`, a key and a head, on, and ahead of it what `first` starts.
    #[inline(always)]
    fn copy_piece(
        map: (u64, &MapWords),
        place: [u32; 2],
        ring: &mut Places<Self>,
        first: impl FnOnce(u32),
    ) {
        let team = Team { thread: gpu::rematerialize_thread(), threads: Self::THREADS };
        let to = Self::stage(ring.ahead.wait_empty());
        let full = ring.ahead.full();
        L::fill(team, full, Self::SLOT as u32, || {
            first(full);
            unroll!(c < CHUNKS, most 4, {
                let place = [c as u32 * 64, place[0], place[1]];
                L::tile(team, to + (c * SMEM_TILE) as u32, map, place, PIECE, full);
            });
        });
        ring.ahead.advance();
    }

    /// Starts the copy of this warp's queries. They arrive with the first keys.
    #[inline(always)]
    fn copy_queries(p: &AttentionParams, at: u64, now: Queries, full: u32) {
        let (_, warp) = gpu::lane_and_warp();
        // Results of other queries may have been here.
        warp::sync_lanes(u32::MAX);
        unroll!(half < 2, {
            unroll!(c < CHUNKS, most 4, {
                let to = copy::arena() + ((half * CHUNKS + c) * SMEM_TILE) as u32 + warp * 2048;
                let row = now.row + (half * HALF) as u32 + warp * 16;
                let place = [c as u32 * 64, row, now.head];
                L::tile(Team::warp(), to, (at, &p.q_map), place, OWN_QUERIES, full);
            });
        });
    }

    /// Scores of a piece for those of the halves that have entries.
    #[inline(always)]
    fn score_pieces<E: WgmmaElem>(scores: &mut [Acc<1>; 2], slot: u32, halves: u32) {
        let keys = frag::descriptor(Self::stage(slot), PANEL_BYTES as u32, 16);
        let (lane, warp) = gpu::lane_and_warp();
        let (row, chunk) = frag::ldmatrix_x4(lane);
        let byte = (warp * 16 + row) * PANEL_BYTES as u32 + chunk * 16;
        let queries = frag::swizzled(copy::arena() + byte, PANEL_BYTES as u32);
        macro_rules! score {
            ($which:expr) => {
                unroll!(c < CHUNKS, most 4, {
                    let fragment = |step: usize, half: usize| {
                        let from = queries ^ (step * 32) as u32;
                        matrix::ldmatrix_x4(from + ((half * CHUNKS + c) * SMEM_TILE) as u32)
                    };
                    let keys = onward(keys, c * SMEM_TILE);
                    MmaSync::mma_two::<E, 1, 0, { $which }>(scores, fragment, keys);
                })
            };
        }
        match halves {
            BOTH => score!(BOTH),
            MmaSync::FIRST => score!(MmaSync::FIRST),
            MmaSync::SECOND => score!(MmaSync::SECOND),
            _ => (),
        }
    }

    /// Weighs the values of a piece for those of the halves that have entries.
    #[inline(always)]
    fn weigh_pieces<E: WgmmaElem>(
        out: &mut [Acc<CHUNKS>; 2],
        slot: u32,
        weights: &[Weights<1>; 2],
        halves: u32,
    ) {
        let values = frag::descriptor(Self::stage(slot), PANEL_BYTES as u32, SMEM_TILE as u32);
        let fragment = |step: usize, half: usize| weights[half][0][step];
        match halves {
            BOTH => MmaSync::mma_two::<E, CHUNKS, 1, BOTH>(out, fragment, values),
            MmaSync::FIRST => {
                MmaSync::mma_two::<E, CHUNKS, 1, { MmaSync::FIRST }>(out, fragment, values)
            }
            MmaSync::SECOND => {
                MmaSync::mma_two::<E, CHUNKS, 1, { MmaSync::SECOND }>(out, fragment, values)
            }
            _ => (),
        }
    }
}
