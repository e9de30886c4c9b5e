//! Four warps that alternate between copies and products. The 128 queries have two halves of 64; each warp has 16
//! queries of the first half and 16 of the second. A warp loads fragments of keys and values once for both. The keys of
//! a tile are processed in pieces of 64: scores of 128 keys would need all registers. Keys and values of a piece take
//! one slot each, and the ring has three:
//!
//! ```text
//! each warp   wait K[i] -> scores -> release K[i] -> softmax -> start the copy of K[i+1], into the slot of V[i-1]
//!             wait V[i] -> O += P V[i] -> release V[i] -> start the copy of V[i+1], into the slot of K[i]
//! ```
//!
//! The copy of K[i+1] runs during the product with V[i], that of V[i+1] during the scores of K[i+1]. All 128 threads
//! take part in every copy (`cp.async`). A slot is 64 keys or values: one tile of 64 rows x 128 bytes (128-byte
//! swizzle) for each 64 elements of the head. The mbarriers `full` and `empty` order the warps. Only the fix-up of
//! split queries has another barrier. Two thread blocks share a multiprocessor: one multiplies during the softmax of
//! the other. The copies for the next queries start after the epilogue.

use super::queries;
use super::softmax::{Entries, Rows, Weights, pack, rescale_if_moved, softmax};
use crate::device::prelude::*;
use crate::families::attention::abi::*;
use crate::families::attention::lanes::quad_sum;

/// Warps of a thread block.
const WARPS: u32 = 4;
/// Box of a copy to a slot or to the queries' buffer: 64 elements a row.
const BOXED: Shape = Shape { rows: ATTENTION_PIECE, row_bytes: PANEL_BYTES, element: 2 };
/// Box of a warp's queries of one half.
const OWN_QUERIES: Shape = Shape { rows: HALF / 4, row_bytes: PANEL_BYTES, element: 2 };
/// Both fragments of [`MmaSync::mma_two`].
const BOTH: u32 = MmaSync::FIRST | MmaSync::SECOND;

/// A piece of keys, with its position in the list of tiles.
#[derive(Clone, Copy)]
struct Piece {
    /// Index of its tile.
    number: u32,
    /// Twice the number of tiles from that one on, plus 1 if the next piece is in the same tile.
    left: u32,
    /// First key of the piece.
    key: u32,
}

/// Words of a [`KeyTile`].
type Record = [u32; 4];

impl Piece {
    /// Returns the first piece of these queries.
    #[inline(always)]
    fn first(p: &AttentionParams, now: Queries, record: Record) -> Self {
        Piece { number: now.tile, left: Self::left(p, now.tiles, record), key: record[0] }
    }

    #[inline(always)]
    fn record(p: &AttentionParams, number: u32, valid: bool) -> Record {
        p.tiles().at(number).ld_if(valid)
    }

    /// Returns the field `left`. A second piece that begins past the last key is skipped.
    #[inline(always)]
    fn left(p: &AttentionParams, tiles: u32, record: Record) -> u32 {
        let two = record[1] < (p.k_map[MAP_EXTENTS] >> 32) as u32;
        2 * tiles + u32::from(two && tiles > 0)
    }

    #[inline(always)]
    fn valid(&self) -> bool {
        self.left > 1
    }

    #[inline(always)]
    fn stays(&self) -> bool {
        self.left % 2 != 0
    }

    /// Loads the record of the next piece's tile, long before it is used.
    #[inline(always)]
    fn look_ahead(&self, p: &AttentionParams) -> Record {
        let number = self.number + u32::from(!self.stays());
        Self::record(p, number, self.stays() || self.left > 3)
    }

    /// Returns the next piece, whose tile is `record`, and its index in the tile.
    #[inline(always)]
    fn next(self, p: &AttentionParams, record: Record) -> (Self, u32) {
        if self.stays() {
            return (Piece { left: self.left - 1, key: record[1], ..self }, 1);
        }
        let left = Self::left(p, self.left / 2 - 1, record);
        (Piece { number: self.number + 1, left, key: record[0] }, 0)
    }
}

/// Loads this thread's bits in the masks of a tile, for its piece `side`.
#[inline(always)]
fn bits_of(p: &AttentionParams, valid: bool, masks: [u32; 2], side: u32) -> [u32; 2] {
    let own = gpu::opaque_thread() % 128 * 8 + side * 4;
    let mut bits = [0; 2];
    unroll!(half < 2, {
        let at = p.masks().row(masks[half], ATTENTION_MASK as u64).bytes(own).cast::<u32>();
        bits[half] = at.ld_if(valid && masks[half] < MASK_LIMIT);
    });
    bits
}

/// Returns the entries of each half, and the halves in which this warp has any, as bits of [`MmaSync::mma_two`]. A
/// warp whose 16 queries attend to all keys needs no mask.
#[inline(always)]
fn entries_of(masks: [u32; 2], bits: [u32; 2]) -> ([Entries<1>; 2], u32) {
    let mut halves = 0;
    let mut entries = [Entries { mask: MASK_NONE, bits: [0] }; 2];
    unroll!(half < 2, {
        let own = if masks[half] == MASK_ALL { u32::MAX } else { bits[half] };
        let all = warp::ballot(own != u32::MAX) == 0;
        let any = warp::ballot(own != 0) != 0;
        entries[half] = Entries { mask: if all { MASK_ALL } else { 0 }, bits: [own] };
        halves |= if any { MmaSync::FIRST << half } else { 0 };
    });
    (entries, halves)
}

/// Positions of a warp in the ring: `ahead` as a producer, for the next copy; `now` as a consumer, for the next
/// product.
struct Places<S> {
    ahead: Ring<S>,
    now: Ring<S>,
}

/// A warp's sums of each half.
struct Sums<const CHUNKS: usize> {
    out: [Acc<CHUNKS>; 2],
    /// See [`Rows::base`].
    base: [[f32; 2]; 2],
}

impl<const CHUNKS: usize, L: Loader> Attention<CHUNKS, MmaSync, L> {
    /// Processes all queries of this thread block.
    #[inline(always)]
    pub(super) fn run_together<E: WgmmaElem>(p: &AttentionParams, at: Maps) {
        if gpu::thread() == 0 {
            Self::make_barriers(L::fills(Self::THREADS), WARPS);
            L::prefetch_maps::<3>(at);
        }
        gpu::sync_threads();
        grid::wait_dependency();
        let mut ring = Places { ahead: Ring::producer(), now: Ring::consumer() };
        let mut now = queries(p, 0);
        let mut round = 0;
        unroll!(half < 2, {
            Self::take_sums(half);
        });
        while now.row != NO_STRIP {
            let mut sums = Sums { out: [Acc::zero(); 2], base: [[f32::NEG_INFINITY; 2]; 2] };
            Self::walk_pieces::<E>(p, at, now, &mut ring, &mut sums);
            // Loaded a second time, and the next ones only now: sums and scores leave no registers for them.
            now = queries(p, round);
            round += 1;
            let later = queries(p, round);
            unroll!(half < 2, {
                let rows = Rows { base: sums.base[half], sum: Self::take_sums(half) };
                Self::epilogue::<E>(p, now, half as u32, &mut sums.out[half], rows);
            });
            now = later;
        }
    }

    /// Returns the shared address of a sum of exponentials. Four lanes share rows r and r + 8. The first of them stores
    /// the sum of row r here, the second one that of row r + 8. Registers do not suffice for eight sums and bases.
    #[inline(always)]
    fn sum_place(half: usize) -> Shared<f32> {
        let (lane, warp) = gpu::lane_and_warp();
        let row = half as u32 * HALF as u32 + warp * 16 + lane % 2 * 8 + lane / 4;
        Self::scratch().bytes(16).at(row).cast()
    }

    /// Returns whether this lane keeps a sum.
    #[inline(always)]
    fn keeps_sum() -> bool {
        gpu::opaque_thread() % 4 < 2
    }

    /// Multiplies the sums of a half by `by`, and adds those of a piece.
    #[inline(always)]
    fn add_sums(half: usize, more: [f32; 2], by: [f32; 2]) {
        let more = more.map(quad_sum);
        if Self::keeps_sum() {
            let first = gpu::opaque_thread() % 2 == 0;
            let (more, by) = if first { (more[0], by[0]) } else { (more[1], by[1]) };
            let place = Self::sum_place(half);
            place.st(matrix::fma_f32(place.ld(), by, more));
        }
    }

    /// Returns this lane's sums of a half, and sets them to zero.
    #[inline(always)]
    fn take_sums(half: usize) -> [f32; 2] {
        if !Self::keeps_sum() {
            return [0.0; 2];
        }
        let place = Self::sum_place(half);
        let sum = place.ld();
        place.st(0.0);
        let first = gpu::opaque_thread() % 2 == 0;
        if first { [sum, 0.0] } else { [0.0, sum] }
    }

    /// Processes all pieces of keys of these queries. The slots of the next piece's keys and values were released by
    /// this warp half a piece before their copies start, so a copy rarely waits for a slower warp.
    #[inline(always)]
    fn walk_pieces<E: WgmmaElem>(
        p: &AttentionParams,
        at: Maps,
        now: Queries,
        ring: &mut Places<Self>,
        sums: &mut Sums<CHUNKS>,
    ) {
        let record = Piece::record(p, now.tile, now.tiles > 0);
        let mut this = Piece::first(p, now, record);
        let mut masks = [record[2], record[3]];
        let mut bits = bits_of(p, this.valid(), masks, 0);
        let (keys, values) = ((at.map(1), &p.k_map), (at.map(2), &p.v_map));
        if this.valid() {
            Self::copy_piece(keys, [this.key, now.key_head], ring, |full| {
                Self::copy_queries(p, at, now, full)
            });
            Self::copy_piece(values, [this.key, now.key_head], ring, |_| ());
        }
        while this.valid() {
            let (entries, halves) = entries_of(masks, bits);
            let mut scores = [Acc::<1>::zero(); 2];
            let slot = ring.now.wait_full();
            Self::multiply_qk::<E>(&mut scores, slot, halves);
            Self::release(slot);
            ring.now.advance();
            let mut record = [0; 4];
            let mut weights = [[[[0; 4]; STEPS]; 1]; 2];
            unroll!(half < 2, {
                if halves >> half & 1 != 0 {
                    let mut rows = Rows { base: sums.base[half], sum: [0.0; 2] };
                    let by = softmax(&mut scores[half], entries[half], &mut rows, p.scale);
                    sums.base[half] = rows.base;
                    Self::add_sums(half, rows.sum, by);
                    rescale_if_moved(&mut sums.out[half], by);
                    weights[half] = pack::<E, 1>(&scores[half]);
                }
                if half == 0 {
                    // Not earlier: registers do not suffice.
                    record = this.look_ahead(p);
                }
            });
            let (next, side) = this.next(p, record);
            if next.valid() {
                Self::copy_piece(keys, [next.key, now.key_head], ring, |_| ());
            }
            masks = [record[2], record[3]];
            bits = bits_of(p, next.valid(), masks, side);
            let slot = ring.now.wait_full();
            Self::multiply_pv::<E>(&mut sums.out, slot, &weights, halves);
            Self::release(slot);
            ring.now.advance();
            if next.valid() {
                Self::copy_piece(values, [next.key, now.key_head], ring, |_| ());
            }
            this = next;
        }
    }

    /// Copies keys or values from `place` (key, head) on. `first` starts further copies before it.
    #[inline(always)]
    fn copy_piece(
        map: (TensorMap, &MapWords),
        place: [u32; 2],
        ring: &mut Places<Self>,
        first: impl FnOnce(Shared<Mbarrier>),
    ) {
        let team = Team { thread: gpu::opaque_thread(), threads: Self::THREADS };
        let to = Self::stage(ring.ahead.wait_empty());
        let full = ring.ahead.full();
        // Hides the head from the optimizer, which would keep head times stride in registers between copies.
        let head = warp::opaque(place[1]);
        L::fill(team, full, Self::SLOT as u32, || {
            first(full);
            unroll!(c < CHUNKS, most 4, {
                let place = [c as u32 * 64, place[0], head];
                L::tile(team, to.bytes((c * SMEM_TILE) as u32), map, place, BOXED, full);
            });
        });
        ring.ahead.advance();
    }

    /// Starts the copy of this warp's queries. They arrive with the first keys. Their buffer is also the output buffer;
    /// a warp reads and writes only the rows of its own queries there.
    #[inline(always)]
    fn copy_queries(p: &AttentionParams, at: Maps, now: Queries, full: Shared<Mbarrier>) {
        let (_, warp) = gpu::lane_and_warp();
        // The buffer may hold results of earlier queries.
        warp::sync(u32::MAX);
        unroll!(half < 2, {
            unroll!(c < CHUNKS, most 4, {
                let to = Self::query_tile(half as u32, c as u32).bytes(warp * 2048);
                let row = now.row + (half * HALF) as u32 + warp * 16;
                let place = [c as u32 * 64, row, now.head];
                L::tile(Team::warp(), to, (at.map(0), &p.q_map), place, OWN_QUERIES, full);
            });
        });
    }

    /// Computes the scores of a piece for the halves that have entries.
    #[inline(always)]
    fn multiply_qk<E: WgmmaElem>(scores: &mut [Acc<1>; 2], slot: u32, halves: u32) {
        let keys = Self::stage(slot).descriptor(PANEL_BYTES as u32, 16);
        let (lane, warp) = gpu::lane_and_warp();
        let (row, chunk) = frag::ldmatrix_x4(lane);
        let byte = (warp * 16 + row) * PANEL_BYTES as u32 + chunk * 16;
        let queries = Self::query_tile(0, 0).bytes(byte).swizzled(PANEL_BYTES as u32);
        // `opaque` keeps this a loop for LLVM, which would otherwise precompute addresses in registers that are not
        // available.
        macro_rules! score {
            ($which:expr) => {{
                let mut c = warp::opaque(0);
                while c < CHUNKS as u32 {
                    warp::nounroll();
                    let queries = queries.bytes(c * SMEM_TILE as u32);
                    let fragment = |step: usize, half: usize| {
                        let from = queries.flipped((step * 32) as u32);
                        from.bytes((half * CHUNKS * SMEM_TILE) as u32).ldmatrix()
                    };
                    let keys = keys + (c * (SMEM_TILE / 16) as u32) as u64;
                    MmaSync::mma_two::<E, 1, 0, { $which }>(scores, fragment, keys);
                    c += 1;
                }
            }};
        }
        match halves {
            BOTH => score!(BOTH),
            MmaSync::FIRST => score!(MmaSync::FIRST),
            MmaSync::SECOND => score!(MmaSync::SECOND),
            _ => (),
        }
    }

    /// Multiplies the values of a piece by the weights of the halves that have entries.
    #[inline(always)]
    fn multiply_pv<E: WgmmaElem>(
        out: &mut [Acc<CHUNKS>; 2],
        slot: u32,
        weights: &[Weights<1>; 2],
        halves: u32,
    ) {
        let values = Self::stage(slot).descriptor(PANEL_BYTES as u32, SMEM_TILE as u32);
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
