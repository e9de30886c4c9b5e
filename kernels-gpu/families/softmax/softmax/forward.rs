//! Softmax of a row. The maximum is subtracted first. Sums are f32. Their order depends on the class of the row and on
//! the alignment of its first entry, not on the order in which threads run.

use core::marker::PhantomData;

use super::{FIRST, RowForm, SECOND, Span, each_piece, reduce, store_sums};
use crate::device::prelude::*;
use crate::families::softmax::abi::*;

/// Scaled scores of one lane; -Inf for slots without an unmasked entry.
type Scores<const VEC: usize, const REP: usize> = [[f32; VEC]; REP];

/// Conversion of a score minus its maximum, or of its exponential, into the output.
#[derive(Clone, Copy)]
pub(super) struct Finish {
    pub factor: f32,
    pub shift: f32,
}

impl Finish {
    /// Conversion of a row, with `log` (a constant) of the logarithm. If no score is above -Inf, the row becomes 0
    /// (-Inf), as if every entry were masked.
    #[inline(always)]
    pub fn new(max: f32, sum: f32, log: bool) -> Finish {
        let none = max == f32::NEG_INFINITY;
        let (factor, shift) = if log {
            (1.0, -core::f32::consts::LN_2 * matrix::lg2_approx(sum))
        } else {
            (matrix::rcp_approx(sum), 0.0)
        };
        Finish {
            factor: if none && !log { 0.0 } else { factor },
            shift: if none { 0.0 } else { shift },
        }
    }
}

/// Value that is subtracted from scores; 0 if none is above -Inf, since -Inf minus itself is NaN.
#[inline(always)]
pub(super) fn base_of(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// Factor of scores. Except for the logarithm, it makes them exponents of two.
#[inline(always)]
fn factor(scale: f32, log: bool) -> f32 {
    if log { scale } else { scale * core::f32::consts::LOG2_E }
}

/// Exponential of a difference of scaled scores.
#[inline(always)]
fn power(difference: f32, log: bool) -> f32 {
    let of_two = if log { core::f32::consts::LOG2_E } else { 1.0 };
    matrix::ex2_approx_ftz(difference * of_two)
}

/// Softmax of a row of which a lane holds `REP` vectors.
pub(super) struct Forward<const VEC: usize, const REP: usize, F>(PhantomData<F>);

impl<const VEC: usize, const REP: usize, F: RowForm> Forward<VEC, REP, F> {
    /// Loads the lane's scores, and returns them with their maximum.
    #[inline(always)]
    fn scores(p: &SoftmaxParams, span: Span) -> (Scores<VEC, REP>, f32) {
        let factor = factor(p.scale, F::LOG);
        let lane = span.lane::<VEC, F>();
        let mut raw = [[0u32; 4]; REP];
        unroll!(r < REP, { raw[r] = lane.load(p.input(), r) });
        let mut scores = [[f32::NEG_INFINITY; VEC]; REP];
        let mut max = f32::NEG_INFINITY;
        unroll!(r < REP, {
            unroll!(i < VEC, {
                let scaled = matrix::mul_f32(F::E::get(&raw[r], i), factor);
                if lane.is_live(r, i) {
                    scores[r][i] = scaled;
                }
                max = matrix::max_nan(max, scores[r][i]);
            });
        });
        (scores, max)
    }

    /// Sum of the exponentials relative to `base`. The exponentials, for the logarithm the differences, replace the
    /// scores.
    #[inline(always)]
    fn exponentials(scores: &mut Scores<VEC, REP>, base: f32) -> f32 {
        let mut sum = 0.0;
        unroll!(r < REP, {
            unroll!(i < VEC, {
                let difference = scores[r][i] - base;
                let power = power(difference, F::LOG);
                sum += power;
                scores[r][i] = if F::LOG { difference } else { power };
            });
        });
        sum
    }

    #[inline(always)]
    fn write(p: &SoftmaxParams, span: Span, values: &Scores<VEC, REP>, finish: Finish) {
        let lane = span.lane::<VEC, F>();
        let masked = if F::LOG { f32::NEG_INFINITY } else { 0.0 };
        unroll!(r < REP, {
            let mut out = [masked; VEC];
            unroll!(i < VEC, {
                out[i] =
                    if F::LOG { values[r][i] + finish.shift } else { values[r][i] * finish.factor };
            });
            if p.live != 0 {
                // Masked entries do not depend on the others.
                unroll!(i < VEC, {
                    if !lane.is_live(r, i) {
                        out[i] = masked;
                    }
                });
            }
            lane.store(p.output(), r, &out);
        });
    }

    /// Computes a row that fits the registers of its lanes.
    #[inline(always)]
    pub fn row(p: &SoftmaxParams, span: Span) {
        let (mut values, max) = Self::scores(p, span);
        let max = reduce::<F, true>(max, FIRST);
        let sum = Self::exponentials(&mut values, base_of(max));
        let sum = reduce::<F, false>(sum, SECOND);
        let finish = Finish::new(max, sum, F::LOG);
        Self::write(p, span, &values, finish);
    }

    /// Computes a piece of a longer row. The preceding launch stores each piece's maximum and sum (Milakov and
    /// Gimelshein, arXiv 1805.02867). This one joins those of the row, in order, and reads the piece again, from L2.
    #[inline(always)]
    pub fn piece(p: &SoftmaxParams, span: Span, index: u32) {
        let (mut values, max) = Self::scores(p, span);
        if p.flags & SOFTMAX_SUMS != 0 {
            grid::launch_dependents();
            let max = reduce::<F, true>(max, FIRST);
            let sum = Self::exponentials(&mut values, base_of(max));
            let sum = reduce::<F, false>(sum, SECOND);
            store_sums(p, index, [max, sum]);
            return;
        }
        let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
        each_piece(p, index, |[more_max, more_sum]| {
            let above = matrix::max_nan(max, more_max);
            let base = base_of(above);
            let (more, less) = (power(more_max - base, F::LOG), power(max - base, F::LOG));
            sum = matrix::fma_f32(more_sum, more, sum * less);
            max = above;
        });
        let all = reduce::<F, true>(max, FIRST);
        let base = base_of(all);
        let sum = reduce::<F, false>(sum * power(max - base, F::LOG), SECOND);
        Self::exponentials(&mut values, base);
        Self::write(p, span, &values, Finish::new(all, sum, F::LOG));
    }
}
