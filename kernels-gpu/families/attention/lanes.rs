//! Shared parts of this family's softmaxes. Four lanes hold a row of scores; exponentials are relative to a base.

use crate::device::lanes;
use crate::device::prelude::*;

/// Returns the max over the four lanes of a row.
#[inline(always)]
pub(super) fn quad_max(x: f32) -> f32 {
    lanes::reduce(x, lanes::UP, 1..4, |x, distance| x.max(F32::shfl_xor(x, distance)))
}

/// Returns the sum over the four lanes of a row.
#[inline(always)]
pub(super) fn quad_sum(x: f32) -> f32 {
    lanes::sum_of::<F32>(x, lanes::UP, 1..4)
}

/// Returns minus a base, scaled; zero for -Inf, so that a score of -Inf gets weight 0.
#[inline(always)]
pub(super) fn shift_of(base: f32, scale: f32) -> f32 {
    if base == f32::NEG_INFINITY { 0.0 } else { -base * scale }
}

/// Returns the factor of exponentials, and of their sums, when their base changes.
#[inline(always)]
pub(super) fn rescaling(from: f32, to: f32, scale: f32) -> f32 {
    matrix::ex2_approx_ftz(matrix::fma_f32(from, scale, shift_of(to, scale)))
}

/// Power of two up to which exponentials may grow before their base moves, so that earlier sums are seldom rescaled (an
/// idea of FlashAttention-4). It fits in f32 and f16, and loses less to underflow than the max as the base.
const SLACK: f32 = 8.0;

/// Returns whether the base moves: the max exceeds it by more than [`SLACK`], scaled. False for -Inf and -Inf, and for
/// Inf and Inf, which gives NaN in the exponentials.
#[inline(always)]
pub(super) fn base_moves(top: f32, base: f32, scale: f32) -> bool {
    (top - base) * scale > SLACK
}
