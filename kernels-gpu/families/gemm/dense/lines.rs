//! Finished sums to C by 16 bytes a lane: four lanes exchange what they have of four atoms.

use super::DenseTile;
use super::out::{Own, Place, TURNED_BETWEEN};
use crate::device::epilogue::Output;
use crate::device::prelude::*;
use crate::device::store::chunk::ROWS;

impl<const GROUPS: usize, const CHUNKS: usize, const CUT: usize, const BYTES: usize>
    DenseTile<GROUPS, CHUNKS, CUT, BYTES>
{
    /// Stores a thread's atoms, where C allows 16 bytes at once and is only written.
    #[inline(always)]
    pub(super) fn store_lines<E: Elem<Acc = f32>>(o: Output, m: u32, place: Place, own: &Own) {
        match (Self::TRANSPOSED, Self::OF_FOUR) {
            (true, 4) => Self::transposed_lines(o, m, place, own),
            (true, _) => Self::transposed_words(o, m, place, own),
            (false, 4) => Self::plain_lines::<E>(o, m, place, own),
            (false, _) => Self::plain_pairs::<E>(o, m, place, own),
        }
    }

    /// Four lanes share a row; each takes one of the atoms, 8 columns of it.
    #[inline(always)]
    fn plain_lines<E: Elem<Acc = f32>>(o: Output, m: u32, place: Place, own: &Own) {
        let lane = gpu::rematerialize_thread() % 32;
        let column = place.column - lane % 4 * 2 + lane % 4 * 8;
        unroll!(r < 2, {
            let row = place.row + 8 * r as u32;
            let line = o.c + row as u64 * o.ldc_bytes as u64 + column as u64 * 2;
            unroll!(q < Self::FOURS, {
                let words = [0, 1, 2, 3].map(|g| {
                    let (a, b) = (own[q][g][ROWS[r]], own[q][g][ROWS[r] + 1]);
                    E::put(&[a, b, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])[0]
                });
                let eight = transposed(words, lane, 1);
                if row < m && column + 32 * (q as u32) < o.n {
                    global::store_v4(line + q as u64 * 64, eight);
                }
            });
        });
    }

    /// Too few atoms to exchange: two neighbours as they lie in registers.
    #[inline(always)]
    fn plain_pairs<E: Elem<Acc = f32>>(o: Output, m: u32, place: Place, own: &Own) {
        unroll!(r < 2, {
            let row = place.row + 8 * r as u32;
            unroll!(g < Self::OF_FOUR, most 4, {
                let column = place.column + 8 * g as u32;
                let line = o.c + row as u64 * o.ldc_bytes as u64;
                if row < m && column < o.n {
                    let pair = [own[0][g][ROWS[r]], own[0][g][ROWS[r] + 1]];
                    E::store::<2>(line + column as u64 * E::BYTES as u64, &pair);
                }
            });
        });
    }

    /// Four lanes have four neighbouring columns; each takes one of the atoms' rows.
    #[inline(always)]
    fn transposed_lines(o: Output, m: u32, place: Place, own: &Own) {
        let lane = gpu::rematerialize_thread() % 32;
        let t = lane / 4 % 4;
        unroll!(q < Self::FOURS, {
            unroll!(i < 4, {
                let words = [0, 1, 2, 3].map(|g| own[q][g][i].to_bits());
                let four = transposed(words, lane, 4);
                let row = place.row + 8 * t + (q * 32 + i % 2) as u32;
                let column = place.column - t + (i / 2) as u32 * TURNED_BETWEEN;
                if row < m && column < o.n {
                    let at = o.c + row as u64 * o.ldc_bytes as u64 + column as u64 * 4;
                    global::store_v4(at, four);
                }
            });
        });
    }

    /// Too few atoms to exchange.
    #[inline(always)]
    fn transposed_words(o: Output, m: u32, place: Place, own: &Own) {
        unroll!(g < Self::OF_FOUR, most 4, {
            unroll!(i < 4, {
                let row = place.row + (g * 8 + i % 2) as u32;
                let column = place.column + (i / 2) as u32 * TURNED_BETWEEN;
                if row < m && column < o.n {
                    let at = o.c + row as u64 * o.ldc_bytes as u64 + column as u64 * 4;
                    global::store_b32(at, own[0][g][i].to_bits());
                }
            });
        });
    }
}

/// Four lanes, whose numbers differ by `apart`, hold a word of each of four atoms; afterwards each of them has one
/// atom's words of all four lanes.
#[inline(always)]
fn transposed(words: [u32; 4], lane: u32, apart: u32) -> [u32; 4] {
    let [mut a, mut b, mut c, mut d] = words;
    let odd = lane & apart != 0;
    let ab = warp::exchange(if odd { a } else { b }, apart);
    let cd = warp::exchange(if odd { c } else { d }, apart);
    if odd {
        (a, c) = (ab, cd);
    } else {
        (b, d) = (ab, cd);
    }
    let upper = lane & (2 * apart) != 0;
    let ac = warp::exchange(if upper { a } else { c }, 2 * apart);
    let bd = warp::exchange(if upper { b } else { d }, 2 * apart);
    if upper {
        (a, b) = (ac, bd);
    } else {
        (c, d) = (ac, bd);
    }
    [a, b, c, d]
}
