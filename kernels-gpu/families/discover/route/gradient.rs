//! The gradient of the weights of the choices: for each slot the dot product of its hidden row with the row's gradient
//! before the weight. Both rows are weighted on the way, which the gradients of the matrices and of the tokens want.

use crate::device::prelude::*;
use crate::families::discover::abi::*;

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, RouteParams> for RouteGradient {
    #[inline(always)]
    unsafe fn run(p: &RouteParams, _: u64) {
        grid::wait_dependency();
        grid::launch_dependents();
        let slot = (gpu::block_x() * ROUTE_THREADS + gpu::thread()) / 32;
        if slot >= p.count {
            return;
        }
        let lane = gpu::thread() % 32;
        let choice = global::load_b32_fresh(p.order + slot as u64 * 4, true);
        let routed = global::load_b32_fresh(p.offsets + (p.bins.value as u64 - 1) * 4, true);
        let mut sum = 0.0;
        if slot < routed {
            let weight = global::load_b32_fresh(p.weights + choice as u64 * 4, true);
            let weight = f32::from_bits(weight);
            let (row, other) = (
                p.rows + slot as u64 * p.row_bytes as u64,
                p.sums + slot as u64 * p.sum_bytes as u64,
            );
            let mut vector = lane;
            while vector < p.vectors.value {
                let place = vector as u64 * 16;
                let x = global::load_v4_once(row + place, true);
                let y = global::load_v4_once(other + place, true);
                let (mut xs, mut ys) = ([0f32; 8], [0f32; 8]);
                unroll!(i < 8, {
                    (xs[i], ys[i]) = (E::get(&x, i), E::get(&y, i));
                    sum = E::fma(xs[i], ys[i], sum);
                    (xs[i], ys[i]) = (E::mul(weight, xs[i]), E::mul(weight, ys[i]));
                });
                global::store_v4(row + place, E::put(&xs));
                global::store_v4(other + place, E::put(&ys));
                vector += 32;
            }
        }
        leave(p, choice, sum);
    }
}

/// The gradient of a choice's weight, of what each lane has of it.
#[inline(always)]
pub fn leave(p: &RouteParams, choice: u32, mut sum: f32) {
    // The same tree at every run.
    unroll!(i < 5, {
        let other = warp::exchange(sum.to_bits(), 16 >> i);
        sum += f32::from_bits(other);
    });
    if gpu::thread() % 32 == 0 {
        global::store_b32(p.gradient + choice as u64 * 4, sum.to_bits());
    }
}
