//! Epilogue of a tile's accumulators: scaled, stored to shared memory, and the entries picked from there. Every warp
//! has its own 16 rows, so no warp waits for another.

use super::{PerThread, TileElem};
use crate::device::epilogue::store_or_add;
use crate::device::prelude::*;
use crate::device::store::chunk::{ROWS, stage_piece};
use crate::families::sddmm::abi::*;
use crate::families::sddmm::stages::scale;

/// Words of picks that a lane processes at once.
const BATCH: usize = 4;
/// Words of picks that a warp processes at once.
const STEP: u32 = BATCH as u32 * 32;
/// The first two batches of a list: the second is loaded while the first is used.
pub(super) type First = [[u32; BATCH]; 2];

impl<const CHUNKS: usize, F: PickForm<A: Multiply, L: Loader>> PickTile<CHUNKS, F> {
    /// Passes, such that the f32 sums of a pass fit into shared memory.
    const PASSES: u32 = 4 / F::BYTES as u32;
    /// Columns of a pass.
    const WIDTH: u32 = Self::COLUMNS / Self::PASSES;

    /// Loads words `at..` of a list, 32 lanes side by side; zeros past its end, which pick nothing.
    #[inline(always)]
    fn picks(p: &SddmmTilesParams, list: Picks, at: u32) -> [u32; BATCH] {
        let own = at + gpu::opaque_thread() % 32;
        let from = p.picks().at(list.start as u64 + own as u64);
        let mut words = [0; BATCH];
        unroll!(u < BATCH, most 4, {
            let valid = own + u as u32 * 32 < list.words;
            words[u] = from.at(u as u64 * 32).ld_if(valid);
        });
        words
    }

    /// Loads the words of its list that a warp needs first, while the tile is multiplied.
    #[inline(always)]
    pub(super) fn first(p: &SddmmTilesParams, list: Picks) -> First {
        [Self::picks(p, list, 0), Self::picks(p, list, STEP)]
    }

    #[inline(always)]
    fn sums() -> Shared<u8> {
        // SAFETY: the host launches with `SHARED_BYTES`, which include all rows of finished sums.
        unsafe { Shared::dynamic(Self::OUT as u32) }
    }

    /// Address of a warpgroup's 64 rows of finished sums.
    #[inline(always)]
    pub(super) fn out(warpgroup: u32) -> Shared<u8> {
        Self::sums().bytes(warpgroup * (HALF * Self::ROW_BYTES) as u32)
    }

    /// Address of this warp's 16 rows of finished sums.
    #[inline(always)]
    fn smem() -> Shared<u8> {
        let warp = gpu::opaque_thread() / 32;
        Self::sums().bytes(warp * (PICK_ROWS * Self::ROW_BYTES) as u32)
    }

    #[inline(always)]
    pub(super) fn epilogue<E: TileElem>(
        p: &SddmmTilesParams,
        own: PerThread,
        first: First,
        acc: &mut Acc<CHUNKS>,
    ) {
        if own.picks.words == 0 {
            return;
        }
        scale(acc, E::scalar(p.alpha));
        if F::BYTES == 2 && warp::opaque(p.flags) & (FLAG_ACCUMULATE | FLAG_MASK_VALUES) == 0 {
            Self::store::<E>(p, own, first, acc);
        } else {
            // Sums are not rounded before the mask or the addition.
            Self::update::<E>(p, own, first, 0, acc);
            if Self::PASSES > 1 {
                Self::update::<E>(p, own, first, 1, acc);
            }
        }
    }

    /// Rounds, and stores pairs of neighbouring values.
    #[inline(always)]
    fn store<E: TileElem>(p: &SddmmTilesParams, own: PerThread, first: First, acc: &Acc<CHUNKS>) {
        let lane = gpu::opaque_thread() % 32;
        let smem = Self::smem();
        let fragment = frag::ldmatrix_x4(lane);
        warp::sync(u32::MAX);
        unroll!(c < CHUNKS, most 4, {
            let place = ((c * 8) as u32, Self::ROW_BYTES as u32);
            stage_piece::<E>(&acc.0[c], smem, place, fragment);
        });
        warp::sync(u32::MAX);
        let [mut words, mut next] = first;
        let mut at = 0;
        while at < own.picks.words {
            let later = Self::picks(p, own.picks, at + 2 * STEP);
            Self::store_pairs(p, smem, own.base, words, at + lane);
            [words, next] = [next, later];
            at += STEP;
        }
    }

    /// Value index of the first half of word `at` of a list.
    #[inline(always)]
    fn slot(base: u32, word: u32, at: u32) -> u32 {
        let row = (word & (PICKED - 1)) / Self::COLUMNS;
        warp::shfl(base, row).wrapping_add(2 * at)
    }

    /// Stores the values of `words`, at `at` in their list and every 32 further. All loads precede the stores, and none
    /// is in a branch.
    #[inline(always)]
    fn store_pairs(
        p: &SddmmTilesParams,
        smem: Shared<u8>,
        base: u32,
        words: [u32; BATCH],
        at: u32,
    ) {
        const BOTH: u32 = PICKED << 16 | PICKED;
        let whole = p.flags & FLAG_VECTORS != 0;
        let (mut slots, mut values) = ([0; BATCH], [[0; 2]; BATCH]);
        unroll!(u < BATCH, most 4, {
            slots[u] = Self::slot(base, words[u], at + u as u32 * 32);
            unroll!(h < 2, {
                let place = words[u] >> (16 * h) & (PICKED - 1);
                values[u][h] = smem.cast::<u16>().at(place).ld();
            });
        });
        unroll!(u < BATCH, most 4, {
            let to = p.values().bytes(slots[u] as u64 * F::BYTES as u64).cast::<u16>();
            let ([low, high], word) = (values[u], words[u]);
            let pair = whole && word & BOTH == BOTH;
            to.cast::<u32>().st_if(low | high << 16, pair);
            to.st_if(low, !pair && word & PICKED != 0);
            to.at(1u32).st_if(high, !pair && word >> 16 & PICKED != 0);
        });
    }

    /// Stores the columns of a pass in f32, multiplied by the mask or added to the old values.
    #[inline(always)]
    fn update<E: TileElem>(
        p: &SddmmTilesParams,
        own: PerThread,
        first: First,
        pass: u32,
        acc: &Acc<CHUNKS>,
    ) {
        let lane = gpu::opaque_thread() % 32;
        let smem = Self::smem();
        warp::sync(u32::MAX);
        unroll!(c < CHUNKS, most 4, {
            unroll!(j < 8, {
                let atom = ((c * 8 + j) as u32).wrapping_sub(pass * Self::WIDTH / 8);
                if atom < Self::WIDTH / 8 {
                    unroll!(r < 2, {
                        let row = lane / 4 + r as u32 * 8;
                        let piece = atom * 2 + lane % 4 / 2;
                        let at = frag::swizzle(row, piece, Self::ROW_BYTES as u32) + lane % 2 * 8;
                        let k = 4 * j + ROWS[r];
                        let pair = [acc.0[c][k], acc.0[c][k + 1]].map(f32::to_bits);
                        smem.bytes(at).cast::<[u32; 2]>().st(pair);
                    });
                }
            });
        });
        warp::sync(u32::MAX);
        let [mut words, mut next] = first;
        let mut at = 0;
        while at < own.picks.words {
            let later = Self::picks(p, own.picks, at + 2 * STEP);
            unroll!(u < BATCH, most 4, {
                let slot = Self::slot(own.base, words[u], at + u as u32 * 32 + lane);
                Self::update_pair::<E>(p, (smem, pass), slot, words[u]);
            });
            [words, next] = [next, later];
            at += STEP;
        }
    }

    /// Stores the two picks of a word, if they are in this pass.
    #[inline(always)]
    fn update_pair<E: TileElem>(
        p: &SddmmTilesParams,
        (smem, pass): (Shared<u8>, u32),
        slot: u32,
        word: u32,
    ) {
        unroll!(h < 2, {
            let pick = word >> (16 * h) & 0xffff;
            let (row, column) = picked(pick, Self::COLUMNS, F::BYTES as u32);
            let column = column.wrapping_sub(pass * Self::WIDTH);
            if pick & PICKED != 0 && column < Self::WIDTH {
                let piece = frag::swizzle(row, column / 4, Self::ROW_BYTES as u32);
                let x = smem.bytes(piece).cast::<f32>().at(column % 4).ld();
                Self::finish::<E>(p, slot as u64 + h as u64, x);
            }
        });
    }

    /// Multiplies a sum by the mask, adds the old value, and stores it.
    #[inline(always)]
    fn finish<E: TileElem>(p: &SddmmTilesParams, slot: u64, sum: f32) {
        let offset = slot * F::BYTES as u64;
        let mut value = sum;
        if p.flags & FLAG_MASK_VALUES != 0 {
            value = E::mul(value, E::get(&p.mask().bytes(offset).cast::<E>().ld_raw::<1>(true), 0));
        }
        let to = p.values().bytes(offset).cast::<E>();
        store_or_add(to, value, p.flags & FLAG_ACCUMULATE != 0, true);
    }
}
