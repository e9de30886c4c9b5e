//! Online softmax of a tile of scores, in the registers of a warpgroup.

use crate::device::prelude::*;
use crate::families::attention::abi::MASK_ALL;
use crate::families::attention::lanes::{base_moves, quad_max, rescaling, shift_of};

/// Weights of 64 queries and `C` x 64 keys: the exponentials, rounded. They are left operands (fragments in registers)
/// of the products with 16 values each. The division by their sum follows in the epilogue.
pub(super) type Weights<const C: usize> = [[[u32; 4]; STEPS]; C];

/// Mask of 64 queries and `C` x 64 keys.
#[derive(Clone, Copy)]
pub(super) struct Entries<const C: usize> {
    /// [`KeyTile::masks`](crate::families::attention::abi::KeyTile::masks) of the 64 queries, uniform over the warp.
    pub mask: u32,
    /// Mask bits of this thread's accumulators.
    pub bits: [u32; C],
}

/// Base and sum of exponentials of two rows, of which a thread holds a quarter.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Score to which exponentials are relative, before scaling. It becomes the max if the max is too far above it
    /// ([`base_moves`]). -Inf without entries.
    pub base: [f32; 2],
    /// Sum over this thread's columns only.
    pub sum: [f32; 2],
}

impl Rows {
    /// State of rows without entries.
    pub(super) const NONE: Rows = Rows { base: [f32::NEG_INFINITY; 2], sum: [0.0; 2] };
}

/// Runs the body for every accumulator; `$r` is its row, 0 or 1.
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

/// Max scores of two rows, separately for each piece. One chain of dependent max instructions over both pieces would
/// take as long as the products that hide it.
type Largest<const C: usize> = [[f32; 2]; C];

/// Sets scores without an entry to -Inf, and returns the max of the others.
#[inline(always)]
fn mask_scores<const C: usize>(scores: &mut Acc<C>, bits: [u32; C]) -> Largest<C> {
    let mut max = [[f32::NEG_INFINITY; 2]; C];
    // Bits in ascending order: ptxas then moves seven at a time to predicates.
    unroll!(c < C, most 4, {
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

/// Returns the max of this thread's scores in each row and piece, masked ones included.
#[inline(always)]
fn largest<const C: usize>(scores: &Acc<C>) -> Largest<C> {
    let mut max = [[f32::NEG_INFINITY; 2]; C];
    unroll!(atom < 8, {
        unroll!(i < 4, {
            unroll!(c < C, most 4, {
                max[c][i / 2] = max[c][i / 2].max(scores.0[c][4 * atom + i]);
            });
        });
    });
    max
}

/// Returns the max of each row, in all its lanes.
#[inline(always)]
fn row_max<const C: usize>(max: Largest<C>) -> [f32; 2] {
    let mut top = max[0];
    unroll!(c < C, most 4, {
        if c > 0 {
            top = [top[0].max(max[c][0]), top[1].max(max[c][1])];
        }
    });
    top.map(quad_max)
}

/// Replaces scores by exponentials relative to a base, which `rows` keeps together with their sums. Returns the factors
/// of the earlier sums.
#[inline(always)]
pub(super) fn softmax<const C: usize>(
    scores: &mut Acc<C>,
    entries: Entries<C>,
    rows: &mut Rows,
    scale: f32,
) -> [f32; 2] {
    let masked = entries.mask != MASK_ALL;
    let mut top = row_max(largest(scores));
    // If no score moves the base, no score with an entry does. Then nothing is masked here: masks are applied to the
    // exponentials, whose unit leaves issue slots for that.
    if masked
        && warp::ballot(
            base_moves(top[0], rows.base[0], scale) || base_moves(top[1], rows.base[1], scale),
        ) != 0
    {
        top = row_max(mask_scores(scores, entries.bits));
    }
    let mut sum = [[0f32; 2]; C];
    let mut shrink = [1f32; 2];
    // Minus the base, scaled; zero while the base is -Inf, so that a score of -Inf gets weight 0.
    let mut shift = [0f32; 2];
    unroll!(r < 2, {
        let old = rows.base[r];
        let grown = base_moves(top[r], old, scale);
        let base = if grown { top[r] } else { old };
        shift[r] = shift_of(base, scale);
        if grown {
            shrink[r] = rescaling(old, base, scale);
        }
        rows.base[r] = base;
    });
    if masked {
        unroll!(c < C, most 4, {
            unroll!(atom < 8, {
                unroll!(i < 4, {
                    let x = &mut scores.0[c][4 * atom + i];
                    let power = matrix::ex2_approx_ftz(matrix::fma_f32(*x, scale, shift[i / 2]));
                    // Bits in ascending order: ptxas then moves seven at a time to predicates.
                    let valid = entries.bits[c] >> (4 * atom + i) & 1 != 0;
                    *x = if valid { power } else { 0.0 };
                });
            });
        });
    } else {
        each!(scores, C, |r, x| {
            *x = matrix::ex2_approx_ftz(matrix::fma_f32(*x, scale, shift[r]));
        });
    }
    unroll!(atom < 8, {
        unroll!(i < 4, {
            unroll!(c < C, most 4, {
                sum[c][i / 2] += scores.0[c][4 * atom + i];
            });
        });
    });
    unroll!(r < 2, {
        let mut all = sum[0][r];
        unroll!(c < C, most 4, {
            if c > 0 {
                all += sum[c][r];
            }
        });
        rows.sum[r] = matrix::fma_f32(rows.sum[r], shrink[r], all);
    });
    shrink
}

/// Rescales the accumulators of O by `by` if the base of any row of this warp has moved.
#[inline(always)]
pub(super) fn rescale_if_moved<const C: usize>(out: &mut Acc<C>, by: [f32; 2]) {
    if warp::ballot(by[0] != 1.0 || by[1] != 1.0) != 0 {
        rescale(out, by);
    }
}

/// Multiplies the accumulators of each row by its factor.
#[inline(always)]
pub(super) fn rescale<const C: usize>(out: &mut Acc<C>, by: [f32; 2]) {
    each!(out, C, |r, x| {
        *x *= by[r];
    });
}

/// Rounds exponentials to the left operand of a product: two atoms of 8 keys are one of 16.
#[inline(always)]
pub(super) fn pack<E: WgmmaElem, const C: usize>(scores: &Acc<C>) -> Weights<C> {
    let mut weights: Weights<C> = [[[0; 4]; STEPS]; C];
    unroll!(c < C, most 4, {
        unroll!(step < 4, {
            unroll!(w < 4, {
                let k = 8 * step + 2 * w;
                let (x, y) = (scores.0[c][k], scores.0[c][k + 1]);
                weights[c][step][w] = E::put(&[x, y, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])[0];
            });
        });
    });
    weights
}
