//! Gradient of the scores of a row, from the softmax and the gradient of its output: `dS = P (dP - sum P dP) scale`,
//! for the logarithm `dS = (dY - exp(Y) sum dY) scale`.

use core::marker::PhantomData;

use super::{FIRST, RowForm, Span, each_piece, exp, reduce, store_sums};
use crate::device::prelude::*;
use crate::families::softmax::abi::*;

/// Gradient of a scaled score, from the output of the softmax, the gradient of that output, and the row's sum. `log` is
/// a constant.
#[inline(always)]
pub(super) fn slope(y: f32, dy: f32, sum: f32, log: bool) -> f32 {
    if log { matrix::fma_f32(-exp(y), sum, dy) } else { y * (dy - sum) }
}

/// Output of the softmax (`given`) and the gradient of that output (`upstream`), as loaded.
type Pair<const REP: usize> = ([Raw; REP], [Raw; REP]);

/// Gradient of a row of which a lane holds `REP` vectors.
pub(super) struct Gradient<const VEC: usize, const REP: usize, F>(PhantomData<F>);

impl<const VEC: usize, const REP: usize, F: RowForm> Gradient<VEC, REP, F> {
    #[inline(always)]
    fn load(p: &SoftmaxParams, span: Span) -> Pair<REP> {
        let (mut given, mut upstream) = ([[0u32; 4]; REP], [[0u32; 4]; REP]);
        let lane = span.lane::<VEC, F>();
        unroll!(r < REP, {
            given[r] = lane.load(p.input(), r);
            upstream[r] = lane.load(p.upstream(), r);
        });
        (given, upstream)
    }

    /// This lane's share of the sum over the row.
    #[inline(always)]
    fn share(span: Span, (given, upstream): &Pair<REP>) -> f32 {
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
        sum
    }

    #[inline(always)]
    fn write(p: &SoftmaxParams, span: Span, (given, upstream): &Pair<REP>, sum: f32) {
        let lane = span.lane::<VEC, F>();
        unroll!(r < REP, {
            let mut out = [0.0; VEC];
            unroll!(i < VEC, {
                let (y, dy) = (F::E::get(&given[r], i), F::E::get(&upstream[r], i));
                let gradient = slope(y, dy, sum, F::LOG) * p.scale;
                if lane.is_live(r, i) {
                    out[i] = gradient;
                }
            });
            lane.store(p.output(), r, &out);
        });
    }

    /// Computes a row that fits the registers of its lanes.
    #[inline(always)]
    pub(super) fn row(p: &SoftmaxParams, span: Span) {
        let pair = Self::load(p, span);
        let sum = reduce::<F, false>(Self::share(span, &pair), FIRST);
        if F::LANES > 32 {
            // The next row's shares are stored to the same words.
            gpu::sync_threads();
        }
        Self::write(p, span, &pair, sum);
    }

    /// Computes a piece of a longer row with a whole thread block. The preceding launch stores the pieces' sums; this
    /// one adds those of the row, in order.
    #[inline(always)]
    pub(super) fn piece(p: &SoftmaxParams, span: Span, index: u32) {
        let pair = Self::load(p, span);
        let mut sum = 0.0;
        let sums_only = p.flags & SOFTMAX_SUMS != 0;
        if sums_only {
            grid::launch_dependents();
            sum = Self::share(span, &pair);
        } else {
            each_piece(p, index, |[more, _]| sum += more);
        }
        let sum = reduce::<F, false>(sum, FIRST);
        gpu::sync_threads();
        if sums_only {
            store_sums(p, index, [sum, 0.0]);
        } else {
            Self::write(p, span, &pair, sum);
        }
    }
}
