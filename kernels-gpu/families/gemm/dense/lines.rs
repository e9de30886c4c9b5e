//! Stores of finished sums to C, 16 bytes a lane: four lanes exchange their words of four atoms. With `+=`, all loads
//! of C that a lane needs for four atoms are issued before the first is used.

use super::out::{Own, Place, TURNED_BETWEEN, at_c};
use super::{DenseForm, DenseTile};
use crate::device::epilogue::Output;
use crate::device::prelude::*;
use crate::device::store::chunk::ROWS;

impl<const CHUNKS: usize, F: DenseForm<A: Multiply, L: Loader>> DenseTile<CHUNKS, F> {
    /// Stores a thread's atoms where C allows 16-byte accesses. `ADD`: adds them to C.
    #[inline(always)]
    pub(super) fn store_lines<E: Elem<Acc = f32>, const ADD: bool>(
        o: Output,
        m: u32,
        place: Place,
        own: &Own,
    ) {
        match (Self::TRANSPOSED, Self::OF_FOUR) {
            (true, 4) => Self::transposed_lines::<ADD>(o, m, place, own),
            (true, _) => Self::transposed_words::<ADD>(o, m, place, own),
            (false, 4) => Self::plain_lines::<E, ADD>(o, m, place, own),
            (false, _) => Self::plain_pairs::<E, ADD>(o, m, place, own),
        }
    }

    /// Stores four atoms at a time. Four lanes share a row, and each stores the 8 columns of one atom.
    #[inline(always)]
    fn plain_lines<E: Elem<Acc = f32>, const ADD: bool>(
        o: Output,
        m: u32,
        place: Place,
        own: &Own,
    ) {
        let lane = gpu::opaque_thread() % 32;
        let column = place.column - lane % 4 * 2 + lane % 4 * 8;
        unroll!(r < 2, {
            let row = place.row + 8 * r as u32;
            let line = at_c::<E>(o, row, column).cast::<[u32; 4]>();
            unroll!(q < Self::FOURS, {
                let mut pairs = [0, 1, 2, 3].map(|g| pair(&own[q][g], r));
                if ADD {
                    let old = [0, 1, 2, 3].map(|g| {
                        let column = place.column + 8 * (q * 4 + g) as u32;
                        old_pair(at_c::<E>(o, row, column), row < m && column < o.n)
                    });
                    unroll!(g < 4, { pairs[g] = sum(pairs[g], old[g]) });
                }
                let words = pairs.map(|[a, b]| E::put(&[a, b, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])[0]);
                let eight = transposed(words, lane, 1);
                if row < m && column + 32 * (q as u32) < o.n {
                    line.at(4 * q as u64).st(eight);
                }
            });
        });
    }

    /// Stores pairs of neighbours directly from registers: too few atoms to exchange.
    #[inline(always)]
    fn plain_pairs<E: Elem<Acc = f32>, const ADD: bool>(
        o: Output,
        m: u32,
        place: Place,
        own: &Own,
    ) {
        unroll!(r < 2, {
            let row = place.row + 8 * r as u32;
            unroll!(g < Self::OF_FOUR, most 4, {
                let column = place.column + 8 * g as u32;
                let at = at_c::<E>(o, row, column);
                let inside = row < m && column < o.n;
                let mut two = pair(&own[0][g], r);
                if ADD {
                    two = sum(two, old_pair(at, inside));
                }
                if inside {
                    at.st_rounded(&two);
                }
            });
        });
    }

    /// Stores four atoms at a time. Four lanes hold four neighbouring columns; each stores them for the rows of one
    /// atom.
    #[inline(always)]
    fn transposed_lines<const ADD: bool>(o: Output, m: u32, place: Place, own: &Own) {
        let lane = gpu::opaque_thread() % 32;
        let t = lane / 4 % 4;
        unroll!(q < Self::FOURS, {
            let at = |i: usize| {
                let row = place.row + 8 * t + (q * 32 + i % 2) as u32;
                let column = place.column - t + (i / 2) as u32 * TURNED_BETWEEN;
                let at = at_c::<Tf32>(o, row, column).cast::<[u32; 4]>();
                (at, row < m && column < o.n)
            };
            let mut fours = [0, 1, 2, 3].map(|i| {
                let words = [0, 1, 2, 3].map(|g| own[q][g][i].to_bits());
                transposed(words, lane, 4)
            });
            if ADD {
                let old = [0, 1, 2, 3].map(|i| {
                    let (at, inside) = at(i);
                    at.ld_if(inside)
                });
                unroll!(i < 4, {
                    unroll!(w < 4, {
                        let sum = f32::from_bits(fours[i][w]) + f32::from_bits(old[i][w]);
                        fours[i][w] = sum.to_bits();
                    });
                });
            }
            unroll!(i < 4, {
                let (at, inside) = at(i);
                if inside {
                    at.st(fours[i]);
                }
            });
        });
    }

    /// Stores single words: too few atoms to exchange.
    #[inline(always)]
    fn transposed_words<const ADD: bool>(o: Output, m: u32, place: Place, own: &Own) {
        unroll!(g < Self::OF_FOUR, most 4, {
            unroll!(i < 4, {
                let row = place.row + (g * 8 + i % 2) as u32;
                let column = place.column + (i / 2) as u32 * TURNED_BETWEEN;
                let at = at_c::<Tf32>(o, row, column).cast::<f32>();
                let inside = row < m && column < o.n;
                let mut x = own[0][g][i];
                if ADD {
                    x += at.ld_if(inside);
                }
                if inside {
                    at.st(x);
                }
            });
        });
    }
}

/// Two neighbours in row 0 or 8 of an atom.
#[inline(always)]
fn pair(four: &[f32; 4], r: usize) -> [f32; 2] {
    [four[ROWS[r]], four[ROWS[r] + 1]]
}

#[inline(always)]
fn sum([a, b]: [f32; 2], [c, d]: [f32; 2]) -> [f32; 2] {
    [a + c, b + d]
}

/// Loads two neighbouring 16-bit elements of C.
#[inline(always)]
fn old_pair<E: Elem<Acc = f32>>(at: Global<E, Fresh>, inside: bool) -> [f32; 2] {
    let word = [at.cast::<u32>().ld_if(inside), 0, 0, 0];
    [E::get(&word, 0), E::get(&word, 1)]
}

/// Transposes 4 x 4 words over four lanes whose indices differ in bits `apart` and `2 * apart`. Each lane passes a word
/// of each of four atoms, and gets one atom's words of all four lanes.
#[inline(always)]
fn transposed(words: [u32; 4], lane: u32, apart: u32) -> [u32; 4] {
    let [mut a, mut b, mut c, mut d] = words;
    let odd = lane & apart != 0;
    let ab = warp::shfl_xor(if odd { a } else { b }, apart);
    let cd = warp::shfl_xor(if odd { c } else { d }, apart);
    if odd {
        (a, c) = (ab, cd);
    } else {
        (b, d) = (ab, cd);
    }
    let upper = lane & (2 * apart) != 0;
    let ac = warp::shfl_xor(if upper { a } else { c }, 2 * apart);
    let bd = warp::shfl_xor(if upper { b } else { d }, 2 * apart);
    if upper {
        (a, b) = (ac, bd);
    } else {
        (c, d) = (ac, bd);
    }
    [a, b, c, d]
}
