//! Reductions over the lanes of a warp, and over the warps of a thread block. Each run gives the same bits. Every lane
//! of the warp, or every thread of the thread block, must call them together.

use core::ops::Range;

use super::elem::Elem;
use super::gpu;
use super::ptx::matrix;
use super::shared::Shared;
use crate::abi::F32;

/// Orders of a reduction's distances. They give different bits, because floating-point addition is not associative.
pub const UP: [u32; 5] = [1, 2, 4, 8, 16];
pub const DOWN: [u32; 5] = [16, 8, 4, 2, 1];

/// Butterfly reduction of `x`, one step for each power of two in `distances`. `1..n` reduces over `n` adjacent lanes,
/// `n..32` over lanes that are multiples of `n` apart. All lanes of a group get the same bits. `join` gets a value and
/// the distance of the step, and calls `shfl_xor` itself.
#[inline(always)]
pub fn reduce<T>(
    mut x: T,
    order: [u32; 5],
    distances: Range<u32>,
    join: impl Fn(T, u32) -> T,
) -> T {
    unroll!(i < 5, {
        if distances.contains(&order[i]) {
            x = join(x, order[i]);
        }
    });
    x
}

/// [`reduce`] by addition, in the accumulator of `E`.
#[inline(always)]
pub fn sum_of<E: Elem>(x: E::Acc, order: [u32; 5], distances: Range<u32>) -> E::Acc {
    reduce(x, order, distances, |x, distance| E::add(x, E::shfl_xor(x, distance)))
}

/// Sum or maximum (NaN if any value is NaN) of `x` over each group of `LANES` adjacent lanes.
#[inline(always)]
pub fn reduced<const LANES: u32, const MAX: bool>(x: f32) -> f32 {
    reduce(x, DOWN, 1..LANES, |x, distance| {
        let other = F32::shfl_xor(x, distance);
        if MAX { matrix::max_nan(x, other) } else { x + other }
    })
}

/// Sum over the warp.
#[inline(always)]
pub fn sum(x: f32) -> f32 {
    reduced::<32, false>(x)
}

/// Sum over a thread block of `WARPS` warps, of a value `x` of each warp, in the order of the warps. Every thread must
/// call it. There is no barrier before the stores to shared memory, and none after the loads.
#[inline(always)]
pub fn over_warps<const WARPS: u32>(x: f32) -> f32 {
    // SAFETY: the host launches kernels that call this with at least a word of shared memory per warp.
    let sums = unsafe { Shared::<f32>::dynamic(0) };
    if gpu::thread().is_multiple_of(32) {
        sums.at(gpu::thread() / 32).st(x);
    }
    gpu::sync_threads();
    let (mut sum, mut warp) = (0.0, 0);
    while warp < WARPS {
        sum += sums.at(warp).ld();
        warp += 1;
    }
    sum
}

/// Reduces each of `count` values over groups of `lanes` adjacent lanes. The `lanes / count` lanes from lane
/// `i * lanes / count` on get the result of value `i`. In each step a lane sends one half of its values and keeps the
/// other. This takes fewer shuffles than `count` separate reductions. `join` gets the value to keep, the value to send,
/// and the distance.
#[inline(always)]
pub fn reduce_each<T: Copy, const N: usize>(
    mut all: [T; N],
    count: usize,
    lanes: u32,
    join: impl Fn(T, T, u32) -> T,
) -> T {
    unroll!(step < 5, {
        let (distance, half) = (lanes >> (step + 1), count >> (step + 1));
        let upper = gpu::thread() & distance != 0;
        unroll!(i < 8, {
            if i < half {
                let [low, high] = [all[i % N], all[(i + half) % N]];
                let (keep, give) = if upper { (high, low) } else { (low, high) };
                all[i % N] = join(keep, give, distance);
            }
        });
        if half == 0 && distance > 0 {
            all[0] = join(all[0], all[0], distance);
        }
    });
    all[0]
}
