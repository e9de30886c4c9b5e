//! Exponentials of softmaxes, relative to a base.

use super::ptx::matrix;

/// Value that is subtracted from scores; 0 if none is above -Inf, since -Inf minus itself is NaN.
#[inline(always)]
pub fn base_of(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

#[inline(always)]
pub fn exp(x: f32) -> f32 {
    matrix::ex2_approx(x * core::f32::consts::LOG2_E)
}
