//! Gradient of the scores of a row, from the softmax and the gradient of its output: `dS = P (dP - sum P dP) scale`,
//! for the logarithm `dS = (dY - exp(Y) sum dY) scale`.

use core::marker::PhantomData;

use super::{FIRST_REDUCTION, Operation, RowForm, Span, each_piece, over_lanes};
use crate::device::prelude::*;
use crate::device::softmax::exp;
use crate::families::softmax::abi::*;

/// Gradient of a scaled score, from the output of the softmax, the gradient of that output, and the row's sum. `log` is
/// a constant.
#[inline(always)]
pub(super) fn score_gradient(y: f32, dy: f32, sum: f32, log: bool) -> f32 {
    if log { matrix::fma_f32(-exp(y), sum, dy) } else { y * (dy - sum) }
}

/// Gradient of a row of which a lane holds `REP` vectors.
pub(super) struct Gradient<const VEC: usize, const REP: usize, F>(PhantomData<F>);

impl<const VEC: usize, const REP: usize, F: RowForm> Gradient<VEC, REP, F> {
    /// Sum over the lanes of a row. The shares of the next row are stored to the same words.
    #[inline(always)]
    fn over_row(sum: f32) -> [f32; 2] {
        let sum = over_lanes::<F, false>(sum, FIRST_REDUCTION);
        if F::LANES > 32 {
            gpu::sync_threads();
        }
        [sum, 0.0]
    }
}

impl<const VEC: usize, const REP: usize, F: RowForm> Operation for Gradient<VEC, REP, F> {
    const VEC: u32 = VEC as u32;
    const LANES: u32 = F::LANES;
    /// Output of the softmax (`given`) and the gradient of that output (`upstream`), as loaded.
    type Values = ([Raw; REP], [Raw; REP]);

    #[inline(always)]
    fn load(p: &SoftmaxParams, span: Span) -> Self::Values {
        let (mut given, mut upstream) = ([[0u32; 4]; REP], [[0u32; 4]; REP]);
        let lane = span.lane::<VEC, F>();
        unroll!(r < REP, {
            given[r] = lane.load(p.input(), r);
            upstream[r] = lane.load(p.upstream(), r);
        });
        (given, upstream)
    }

    #[inline(always)]
    fn reduce((given, upstream): &mut Self::Values, span: Span) -> [f32; 2] {
        let mut sum = 0.0;
        let lane = span.lane::<VEC, F>();
        unroll!(r < REP, {
            unroll!(i < VEC, {
                let weight = if F::LOG { 1.0 } else { F::E::get(&given[r], i) };
                let more = matrix::fma_f32(weight, F::E::get(&upstream[r], i), sum);
                if lane.is_live(r, i) {
                    sum = more;
                }
            });
        });
        Self::over_row(sum)
    }

    /// Adds the sums of all pieces of the row in a fixed order: first those of each thread, then those of all threads.
    #[inline(always)]
    fn combine_pieces(p: &SoftmaxParams, piece: u32, _: &mut Self::Values) -> [f32; 2] {
        let mut sum = 0.0;
        each_piece(p, piece, |[more, _]| sum += more);
        Self::over_row(sum)
    }

    /// Computes the gradients of the lane's entries from the row's sum, and stores them. Masked entries get 0.
    #[inline(always)]
    fn write(p: &SoftmaxParams, span: Span, values: &Self::Values, [sum, _]: [f32; 2]) {
        let (given, upstream) = values;
        let lane = span.lane::<VEC, F>();
        unroll!(r < REP, {
            let mut out = [0.0; VEC];
            unroll!(i < VEC, {
                let (y, dy) = (F::E::get(&given[r], i), F::E::get(&upstream[r], i));
                let gradient = score_gradient(y, dy, sum, F::LOG) * p.scale;
                if lane.is_live(r, i) {
                    out[i] = gradient;
                }
            });
            lane.store(p.output(), r, &out);
        });
    }
}
