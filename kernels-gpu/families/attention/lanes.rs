//! What softmaxes of this family share: rows of scores lie over four lanes, exponentials are relative to a base.

use crate::device::prelude::*;

/// The largest over the four lanes of a row.
#[inline(always)]
pub(super) fn quad_max(x: f32) -> f32 {
    let other = |x: f32, distance: u32| f32::from_bits(warp::shfl_xor(x.to_bits(), distance));
    let x = x.max(other(x, 1));
    x.max(other(x, 2))
}

/// The sum over the four lanes of a row.
#[inline(always)]
pub(super) fn quad_sum(x: f32) -> f32 {
    let other = |x: f32, distance: u32| f32::from_bits(warp::shfl_xor(x.to_bits(), distance));
    let x = x + other(x, 1);
    x + other(x, 2)
}

/// Minus a base, scaled; zero for none, so that -Inf gives no weight.
#[inline(always)]
pub(super) fn shift_of(base: f32, scale: f32) -> f32 {
    if base == f32::NEG_INFINITY { 0.0 } else { -base * scale }
}

/// Power of two up to which exponentials may grow before their base moves: the sums so far are seldom touched (an idea
/// of FlashAttention-4). f32 and f16 hold it, and less is lost below than with the largest score as the base.
pub(super) const SLACK: f32 = 8.0;
