//! Softmax of a row. The maximum is subtracted first. Sums are f32. Their order depends on the class of the row and on
//! the alignment of its first entry, not on the order in which threads run.

use core::marker::PhantomData;

use super::{FIRST_REDUCTION, Operation, RowForm, SECOND_REDUCTION, Span, each_piece, over_lanes};
use crate::device::prelude::*;
use crate::device::softmax::base_of;
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

/// Factor of scores. Except for the logarithm, it makes them exponents of two.
#[inline(always)]
fn factor(scale: f32, log: bool) -> f32 {
    if log { scale } else { scale * core::f32::consts::LOG2_E }
}

/// Exponential of a difference of scaled scores.
#[inline(always)]
fn exp_scaled(difference: f32, log: bool) -> f32 {
    let of_two = if log { core::f32::consts::LOG2_E } else { 1.0 };
    matrix::ex2_approx_ftz(difference * of_two)
}

/// Softmax of a row of which a lane holds `REP` vectors.
pub(super) struct Forward<const VEC: usize, const REP: usize, F>(PhantomData<F>);

impl<const VEC: usize, const REP: usize, F: RowForm> Forward<VEC, REP, F> {
    /// Sum of the exponentials relative to `base`. The exponentials, for the logarithm the differences, replace the
    /// scores.
    #[inline(always)]
    fn exponentials(scores: &mut Scores<VEC, REP>, base: f32) -> f32 {
        let mut sum = 0.0;
        unroll!(r < REP, {
            unroll!(i < VEC, {
                let difference = scores[r][i] - base;
                let power = exp_scaled(difference, F::LOG);
                sum += power;
                scores[r][i] = if F::LOG { difference } else { power };
            });
        });
        sum
    }
}

impl<const VEC: usize, const REP: usize, F: RowForm> Operation for Forward<VEC, REP, F> {
    const VEC: u32 = VEC as u32;
    const LANES: u32 = F::LANES;
    /// The lane's scores and their maximum.
    type Values = (Scores<VEC, REP>, f32);

    #[inline(always)]
    fn load(p: &SoftmaxParams, span: Span) -> Self::Values {
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

    #[inline(always)]
    fn reduce((scores, max): &mut Self::Values, _: Span) -> [f32; 2] {
        let max = over_lanes::<F, true>(*max, FIRST_REDUCTION);
        let sum = Self::exponentials(scores, base_of(max));
        [max, over_lanes::<F, false>(sum, SECOND_REDUCTION)]
    }

    /// Combines the maxima and sums of the pieces (Milakov and Gimelshein, arXiv 1805.02867), first those of each
    /// thread, then those of all threads. The second launch has loaded `scores` again, from L2, before the wait.
    #[inline(always)]
    fn combine_pieces(p: &SoftmaxParams, piece: u32, (scores, _): &mut Self::Values) -> [f32; 2] {
        let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
        each_piece(p, piece, |[more_max, more_sum]| {
            let above = matrix::max_nan(max, more_max);
            let base = base_of(above);
            let (more, less) =
                (exp_scaled(more_max - base, F::LOG), exp_scaled(max - base, F::LOG));
            sum = matrix::fma_f32(more_sum, more, sum * less);
            max = above;
        });
        let all = over_lanes::<F, true>(max, FIRST_REDUCTION);
        let base = base_of(all);
        let sum = over_lanes::<F, false>(sum * exp_scaled(max - base, F::LOG), SECOND_REDUCTION);
        Self::exponentials(scores, base);
        [all, sum]
    }

    /// Normalizes the lane's values, sets masked entries to 0 (-Inf for the logarithm), and stores them.
    #[inline(always)]
    fn write(p: &SoftmaxParams, span: Span, (values, _): &Self::Values, [max, sum]: [f32; 2]) {
        let finish = Finish::new(max, sum, F::LOG);
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
}
