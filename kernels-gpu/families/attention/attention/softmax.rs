//! The online softmax of a tile of scores, in the registers of a warpgroup.

use crate::device::prelude::*;
use crate::families::attention::abi::MASK_ALL;
use crate::families::attention::lanes::{SLACK, quad_max, shift_of};

/// Probabilities of 64 queries and 128 keys, as the left operand of the eight products with 16 values each.
pub(super) type Weights = [[u32; 4]; 8];

/// What a tile is to a warpgroup.
#[derive(Clone, Copy)]
pub(super) struct Entries {
    /// [`KeyTile::masks`](crate::families::attention::abi::KeyTile::masks) of the half; the same for all lanes.
    pub mask: u32,
    /// Bits of this thread's accumulators.
    pub bits: [u32; 2],
}

/// Base and sum of exponentials of the two rows of which a thread holds a quarter.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Score that exponentials are relative to, before scaling: at most [`SLACK`] below the largest. -Inf without
    /// entries.
    pub base: [f32; 2],
    /// Of this thread's own columns.
    pub sum: [f32; 2],
}

/// Every accumulator of a row `r` of the two.
macro_rules! each {
    ($acc:ident, $chunks:expr, |$r:ident, $x:ident| $body:block) => {
        unroll!(c < $chunks, most 4, {
            unroll!(atom < 8, {
                unroll!(i < 4, {
                    let $r: usize = i / 2;
                    let $x = &mut $acc.0[c][4 * atom + i];
                    $body
                });
            });
        });
    };
}

/// The largest score of two rows, of each piece apart: one chain would be as long as what it is to be hidden behind.
type Largest = [[f32; 2]; 2];

/// Scores without an entry become -Inf, and the largest of the others.
#[inline(always)]
fn hide(scores: &mut Acc<2>, bits: [u32; 2]) -> Largest {
    let mut max = [[f32::NEG_INFINITY; 2]; 2];
    // Bits in order: ptxas then moves seven at once to predicates.
    unroll!(c < 2, {
        unroll!(atom < 8, {
            unroll!(i < 4, {
                let x = &mut scores.0[c][4 * atom + i];
                if bits[c] >> (4 * atom + i) & 1 == 0 {
                    *x = f32::NEG_INFINITY;
                }
                max[c][i / 2] = max[c][i / 2].max(*x);
            });
        });
    });
    max
}

#[inline(always)]
fn largest(scores: &Acc<2>) -> Largest {
    let mut max = [[f32::NEG_INFINITY; 2]; 2];
    unroll!(atom < 8, {
        unroll!(i < 4, {
            unroll!(c < 2, {
                max[c][i / 2] = max[c][i / 2].max(scores.0[c][4 * atom + i]);
            });
        });
    });
    max
}

/// The largest of each row, in all its lanes.
#[inline(always)]
fn tops(max: Largest) -> [f32; 2] {
    [quad_max(max[0][0].max(max[1][0])), quad_max(max[0][1].max(max[1][1]))]
}

/// Does the base move? False for -Inf and -Inf, and for Inf and Inf, which gives NaN below.
#[inline(always)]
fn grows(top: f32, base: f32, scale: f32) -> bool {
    (top - base) * scale > SLACK
}

/// Scores to exponentials, relative to a base that `rows` keeps with their sums. What earlier sums are to be multiplied
/// by.
#[inline(always)]
pub(super) fn softmax(
    scores: &mut Acc<2>,
    entries: Entries,
    rows: &mut Rows,
    scale: f32,
) -> [f32; 2] {
    let masked = entries.mask != MASK_ALL;
    let mut top = tops(largest(scores));
    // A base that all scores leave where it is, those with an entry do as well: nothing has to be hidden yet, and the
    // masks wait for the exponentials, whose unit leaves time for them.
    if masked
        && warp::ballot(grows(top[0], rows.base[0], scale) || grows(top[1], rows.base[1], scale))
            != 0
    {
        top = tops(hide(scores, entries.bits));
    }
    let mut sum = [[0f32; 2]; 2];
    let mut shrink = [1f32; 2];
    // Minus the base, scaled; zero while there is none, so that -Inf gives no weight.
    let mut shift = [0f32; 2];
    unroll!(r < 2, {
        let old = rows.base[r];
        let grown = grows(top[r], old, scale);
        let base = if grown { top[r] } else { old };
        shift[r] = shift_of(base, scale);
        if grown {
            shrink[r] = matrix::exp2_flushed(matrix::fma_f32(old, scale, shift[r]));
        }
        rows.base[r] = base;
    });
    if masked {
        unroll!(c < 2, {
            unroll!(atom < 8, {
                unroll!(i < 4, {
                    let x = &mut scores.0[c][4 * atom + i];
                    let power = matrix::exp2_flushed(matrix::fma_f32(*x, scale, shift[i / 2]));
                    // Bits in order: ptxas then moves seven at once to predicates.
                    let valid = entries.bits[c] >> (4 * atom + i) & 1 != 0;
                    *x = if valid { power } else { 0.0 };
                });
            });
        });
    } else {
        each!(scores, 2, |r, x| {
            *x = matrix::exp2_flushed(matrix::fma_f32(*x, scale, shift[r]));
        });
    }
    unroll!(atom < 8, {
        unroll!(i < 4, {
            unroll!(c < 2, {
                sum[c][i / 2] += scores.0[c][4 * atom + i];
            });
        });
    });
    unroll!(r < 2, {
        rows.sum[r] = matrix::fma_f32(rows.sum[r], shrink[r], sum[0][r] + sum[1][r]);
    });
    shrink
}

#[inline(always)]
pub(super) fn rescale<const C: usize>(out: &mut Acc<C>, by: [f32; 2]) {
    each!(out, C, |r, x| {
        *x *= by[r];
    });
}

/// Exponentials rounded, as the left operand of a product: two atoms of 8 keys are one of 16.
#[inline(always)]
pub(super) fn pack<E: WgmmaElem>(scores: &Acc<2>) -> Weights {
    let mut weights: Weights = [[0; 4]; 8];
    unroll!(step < 8, {
        unroll!(w < 4, {
            let k = 8 * (step % 4) + 2 * w;
            let (x, y) = (scores.0[step / 4][k], scores.0[step / 4][k + 1]);
            weights[step][w] = E::put(&[x, y, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])[0];
        });
    });
    weights
}
