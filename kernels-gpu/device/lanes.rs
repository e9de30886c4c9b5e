//! What lanes of a warp come to together: trees of one shape, the same bits in every lane and at every run.

use super::ptx::{matrix, warp};

/// Sum, or maximum (NaN if one is), over `LANES` neighbouring lanes. Every lane of the warp must call it together.
#[inline(always)]
pub fn reduced<const LANES: u32, const MAX: bool>(mut x: f32) -> f32 {
    unroll!(step < 5, {
        let distance = 16 >> step;
        if distance < LANES {
            let other = f32::from_bits(warp::exchange(x.to_bits(), distance));
            x = if MAX { matrix::max_or_nan(x, other) } else { x + other };
        }
    });
    x
}

/// The sum over the warp.
#[inline(always)]
pub fn sum(x: f32) -> f32 {
    reduced::<32, false>(x)
}
