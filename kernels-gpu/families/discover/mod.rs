//! What of an operand holds something, found at run time: micro-tiles, channels, routes, rows of sequences.

pub mod abi;

#[cfg(any(module = "channels", feature = "cuda_std"))]
mod channels;
#[cfg(any(module = "detect", feature = "cuda_std"))]
mod detect;
#[cfg(any(module = "live_rows", feature = "cuda_std"))]
mod live_rows;
#[cfg(any(module = "route", feature = "cuda_std"))]
mod route;
#[cfg(any(module = "router", feature = "cuda_std"))]
mod router;
#[cfg(any(module = "sample", feature = "cuda_std"))]
mod sample;
#[cfg(any(module = "transpose", feature = "cuda_std"))]
mod transpose;

/// Sum over the lanes, the same tree at every run. Every lane must call it together.
#[cfg(any(module = "route", module = "router", feature = "cuda_std"))]
#[inline(always)]
fn lane_total(mut sum: f32) -> f32 {
    use crate::device::prelude::*;
    unroll!(i < 5, {
        sum += f32::from_bits(warp::exchange(sum.to_bits(), 16 >> i));
    });
    sum
}
