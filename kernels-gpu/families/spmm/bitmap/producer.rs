//! Producer warps: they copy A's compressed words and values, and B by boxes or element by element.

use super::starts::Starts;
use super::{Filled, Ring, bring_starts};
use crate::device::prelude::*;
use crate::families::spmm::abi::*;

/// Chunks of B that a lane copies at once. The number of chunks is a multiple of `32 * BATCH` for 16, 32 and 64
/// columns.
const BATCH: usize = 4;

impl<const GROUPS: usize, const N: usize, F: BitForm<A: Multiply, L: Loader>> Filled<GROUPS>
    for BitTile<GROUPS, N, F>
{
    type L = F::L;
    const ALIGNED: bool = F::ALIGNED;

    #[inline(always)]
    fn full_of(ring: Ring) -> (Shared<Mbarrier>, u32) {
        ring.full()
    }

    #[inline(always)]
    fn copy_a(p: &BitmapParams, piece: BitPiece, stage: u32, own: Starts, ring: Ring) {
        let slot = ring.slot;
        let tile = piece.tile + stage * piece.step;
        if !F::ALIGNED {
            let k = (piece.place + stage) * BIT_TILE as u32;
            Self::copy_elements(p, k, piece.column, Self::stage(slot));
            F::A::fence_proxy_async();
            warp::sync(u32::MAX);
        }
        let lane = gpu::thread() % 32;
        if F::L::BY_ONE && lane != 0 {
            return;
        }
        // The last start is the end of the last tile.
        let values = (own[GROUPS] - own[0]) * 16;
        let words = piece.height * BIT_BYTES as u32;
        let at_words = Self::a(p, slot);
        let at_values = at_words.bytes((GROUPS * BIT_BYTES) as u32);
        let word = |j: usize| at_values.bytes((own[j] - own[0]) * 16).address();
        bring_starts::<GROUPS, F::L>(p, piece, (tile, slot), word);
        let (full, _) = ring.full();
        let b = if F::ALIGNED { Self::B_BYTES as u32 } else { 0 };
        F::L::expect(full, lane, words + values + b, !F::ALIGNED);
        let team = Team { thread: lane, threads: 32 };
        F::L::long_line(team, at_words, p.words().row(tile, BIT_BYTES as u64), words, full);
        if values != 0 {
            F::L::long_line(team, at_values, p.values().at(own[0]), values, full);
        }
        if !F::ALIGNED {
            F::L::started(full, lane);
        }
    }

    #[inline(always)]
    fn copy_b(p: &BitmapParams, at: Maps, piece: BitPiece, stage: u32, ring: Ring) {
        let lane = gpu::thread() % 32;
        if !F::ALIGNED || F::L::BY_ONE && lane != 0 {
            return;
        }
        let k = (piece.place + stage) * BIT_TILE as u32;
        let ((full, _), to) = (ring.full(), Self::stage(ring.slot));
        let team = Team { thread: lane, threads: 32 };
        let map = (at.map(0), &p.b_map);
        if N > 1 {
            let shape = Shape { rows: BIT_TILE, row_bytes: N * 2, element: 2 };
            F::L::tile(team, to, map, [piece.column, k], shape, full);
        } else if F::L::BY_ONE {
            // One column is mapped as a row of a matrix.
            let shape = Shape { rows: 1, row_bytes: BIT_TILE * 2, element: 2 };
            F::L::tile(team, to, map, [k, 0], shape, full);
        } else {
            Self::copy_column(p, k, to);
        }
        F::L::started(full, lane);
    }
}

impl<const GROUPS: usize, const N: usize, F> BitTile<GROUPS, N, F> {
    /// Copies 64 elements of one column of B from `k` on, with zeros past the last row. A lane copies eight of them,
    /// without a swizzle.
    #[inline(always)]
    fn copy_column(p: &BitmapParams, k: u32, to: Shared<u8>) {
        let lane = gpu::thread() % 32;
        let first = k + lane * 8;
        let bytes = (p.k.saturating_sub(first) * 2).min(16);
        if lane < BIT_TILE as u32 / 8 {
            // The source of a copy of 0 bytes is not read, but must be a valid address.
            let from = if bytes > 0 { p.b().at(first) } else { p.b() };
            from.cp_async_16(to.bytes(lane * 16), bytes);
        }
    }

    /// Copies B's 64 rows from `k` on element by element, in the layout of the copy engine: 16-byte chunks swizzled
    /// within the length of a row. Elements past the last row or column are zero. A lane has four chunks in flight.
    #[inline(always)]
    fn copy_elements(p: &BitmapParams, k: u32, column: u32, to: Shared<u8>) {
        let chunks = eights(N) as u32;
        let mut index = gpu::thread() % 32;
        while index < BIT_TILE as u32 * chunks {
            let mut at = [to.cast::<[u32; 4]>(); BATCH];
            let mut elements = [[0; 8]; BATCH];
            unroll!(i < BATCH, {
                let index = index + i as u32 * 32;
                let (row, chunk) = (index / chunks, index % chunks);
                let first = column + chunk * 8;
                let left = if k + row < p.k && first < p.n { p.n - first } else { 0 };
                let from = p.b().row(k + row, p.ldb_bytes).at(first);
                elements[i] = [0, 1, 2, 3, 4, 5, 6, 7].map(|e: u32| from.at(e).ld_if(e < left));
                at[i] = to.cast().at(row * chunks + (chunk ^ ((row * chunks / 8) % chunks)));
            });
            unroll!(i < BATCH, {
                let e = elements[i];
                let words = [0, 2, 4, 6].map(|low: usize| e[low] | e[low + 1] << 16);
                at[i].st(words);
            });
            index += BATCH as u32 * 32;
        }
    }
}
