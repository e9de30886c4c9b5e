//! Reductions over the lanes of a warp. Every lane gets the same bits, and each run gives the same bits.

use super::elem::Elem;
use super::ptx::{matrix, warp};

/// Sum or maximum (NaN if any value is NaN) of `x` over each group of `LANES` adjacent lanes. Every lane of the warp
/// must call it together.
#[inline(always)]
pub fn reduced<const LANES: u32, const MAX: bool>(mut x: f32) -> f32 {
    unroll!(step < 5, {
        let distance = 16 >> step;
        if distance < LANES {
            let other = f32::from_bits(warp::shfl_xor(x.to_bits(), distance));
            x = if MAX { matrix::max_nan(x, other) } else { x + other };
        }
    });
    x
}

/// Sum over the warp.
#[inline(always)]
pub fn sum(x: f32) -> f32 {
    reduced::<32, false>(x)
}

/// Sum over each group of `LANES` adjacent lanes, in the accumulator of `E`. Every lane of the warp must call it
/// together.
#[inline(always)]
pub fn sum_of<E: Elem, const LANES: u32>(mut x: E::Acc) -> E::Acc {
    let mut distance = LANES / 2;
    while distance > 0 {
        x = E::add(x, E::shfl_xor(x, distance));
        distance /= 2;
    }
    x
}
