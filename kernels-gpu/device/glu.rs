//! Activations of gated linear units, `gate(x) * y`. Flags select the activation: [`FLAG_GELU`] GELU, [`FLAG_RELU`]
//! ReLU, otherwise SiLU.

use super::elem::{Elem, normal_tail};
use super::ptx::matrix;
use crate::abi::{FLAG_GELU, FLAG_RELU};
use core::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, LOG2_E};

/// Applies the activation to four sums.
#[inline(always)]
pub fn gate<E: Elem<Acc = f32>>(flags: u32, x: [f32; 4]) -> [f32; 4] {
    if flags & FLAG_GELU != 0 {
        E::gelu_of_four(x)
    } else if flags & FLAG_RELU != 0 {
        x.map(E::relu)
    } else {
        x.map(|x| x * sigmoid(x))
    }
}

/// The activation and its derivative.
#[inline(always)]
pub fn gate_and_slope<E: Elem<Acc = f32>>(flags: u32, x: f32) -> [f32; 2] {
    if flags & FLAG_GELU != 0 {
        // 1 / sqrt(2 pi).
        const PEAK: f32 = 0.5 * FRAC_1_SQRT_2 * FRAC_2_SQRT_PI;
        let tail = normal_tail(f32::from_bits(x.to_bits() & 0x7fff_ffff));
        let below = if x < 0.0 { tail } else { 1.0 - tail };
        let density = PEAK * matrix::ex2_approx(-0.5 * LOG2_E * x * x);
        [E::gelu(x), below + x.clamp(-32.0, 32.0) * density]
    } else if flags & FLAG_RELU != 0 {
        let slope = if x > 0.0 { 1.0 } else { 0.0 };
        [E::relu(x), slope]
    } else {
        let s = sigmoid(x);
        [x * s, s * (1.0 + x * (1.0 - s))]
    }
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    matrix::rcp_approx(1.0 + matrix::ex2_approx(-LOG2_E * x))
}
