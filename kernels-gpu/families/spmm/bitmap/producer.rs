//! The warp that copies: A's words and values as they lie, B by boxes or element by element.

use super::starts::Starts;
use super::{Filled, Ring, offsets};
use crate::device::prelude::*;
use crate::families::spmm::abi::*;

/// Chunks of B that a lane copies at once; those of all lanes are a multiple of it for any number of columns.
const BATCH: usize = 4;

impl<const GROUPS: usize, const N: usize, const ALIGNED: bool> Filled<GROUPS>
    for BitTile<GROUPS, N, ALIGNED>
{
    const B_COPIED: bool = ALIGNED;

    #[inline(always)]
    fn copy_a(p: &BitmapParams, piece: BitPiece, stage: u32, own: Starts, ring: Ring) {
        let slot = ring.slot;
        let tile = piece.tile + stage * piece.step;
        if !ALIGNED {
            let k = (piece.place + stage) * BIT_TILE as u32;
            Self::copy_elements(p, k, piece.column, Self::stage(slot));
            barrier::fence_copies();
            warp::sync_lanes(u32::MAX);
        }
        if gpu::thread() % 32 != 0 {
            return;
        }
        // The last start is that behind the last tile there is.
        let values = (own[GROUPS] - own[0]) * 16;
        let words = piece.height * BIT_BYTES as u32;
        let at_words = Self::a(p, slot);
        let at_values = at_words + (GROUPS * BIT_BYTES) as u32;
        let mut starts = [0; 8];
        unroll!(j < GROUPS, { starts[j] = at_values + (own[j] - own[0]) * 16 });
        let [a, b, c, d, ..] = starts;
        copy::store_shared_v4(offsets(slot), [a, b, c, d]);
        let (full, _) = ring.full();
        let b = if ALIGNED { Self::B_BYTES as u32 } else { 0 };
        barrier::arrive_expect(full, words + values + b);
        bulk::load_line(at_words, p.words + tile as u64 * BIT_BYTES as u64, words, full);
        if values != 0 {
            bulk::load_line(at_values, p.values + own[0] as u64 * 16, values, full);
        }
    }

    #[inline(always)]
    fn copy_b(at: u64, piece: BitPiece, stage: u32, ring: Ring) {
        if !ALIGNED || gpu::thread() % 32 != 0 {
            return;
        }
        let k = (piece.place + stage) * BIT_TILE as u32;
        // One column is mapped as a row.
        let [x, y] = if N == 1 { [k, 0] } else { [piece.column, k] };
        let (full, _) = ring.full();
        bulk::tma_load_2d(Self::stage(ring.slot), at, x, y, full);
    }
}

impl<const GROUPS: usize, const N: usize, const ALIGNED: bool> BitTile<GROUPS, N, ALIGNED> {
    /// B's 64 rows from `k`, element by element, laid out as the copy engine would: 16-byte chunks swizzled within the
    /// length of a row. What lies past the last row or column is zero. Four chunks of a lane are under way at once.
    #[inline(always)]
    fn copy_elements(p: &BitmapParams, k: u32, column: u32, to: u32) {
        let chunks = eights(N) as u32;
        let mut index = gpu::thread() % 32;
        while index < BIT_TILE as u32 * chunks {
            let mut at = [0; BATCH];
            let mut elements = [[0; 8]; BATCH];
            unroll!(i < BATCH, {
                let index = index + i as u32 * 32;
                let (row, chunk) = (index / chunks, index % chunks);
                let first = column + chunk * 8;
                let left = if k + row < p.k && first < p.n { p.n - first } else { 0 };
                let from = p.b + (k + row) as u64 * p.ldb_bytes as u64 + first as u64 * 2;
                elements[i] = [0, 1, 2, 3, 4, 5, 6, 7]
                    .map(|e: u32| global::load_own_b16(from + e as u64 * 2, e < left));
                at[i] = to + (row * chunks + (chunk ^ ((row * chunks / 8) % chunks))) * 16;
            });
            unroll!(i < BATCH, {
                let e = elements[i];
                let words = [0, 2, 4, 6].map(|low: usize| e[low] | e[low + 1] << 16);
                copy::store_shared_v4(at[i], words);
            });
            index += BATCH as u32 * 32;
        }
    }
}
