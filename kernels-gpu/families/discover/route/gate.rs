//! Gated hidden rows of a layer in training, which keeps the sums that its gradients want: `h = gate(x) y` of sums
//! `[x, y]`, and the gradients of both in their places.

use crate::device::prelude::*;
use crate::families::discover::abi::*;

/// Eight sums of a row of gates, and what they are multiplied with.
#[inline(always)]
fn load<E: Elem<Acc = f32>>(p: &RouteParams, slot: u32, vector: u32) -> [[f32; 8]; 2] {
    let row = p.gates + slot as u64 * p.gate_bytes as u64;
    [vector, p.vectors.value + vector].map(|vector| {
        let raw = global::load_v4_once(row + vector as u64 * 16, true);
        [0, 1, 2, 3, 4, 5, 6, 7].map(|i| E::get(&raw, i))
    })
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, RouteParams> for RouteGate {
    #[inline(always)]
    unsafe fn run(p: &RouteParams, _: u64) {
        grid::wait_dependency();
        grid::launch_dependents();
        let (slot, vector) = p.vectors.of(gpu::block_x() * ROUTE_THREADS + gpu::thread());
        if slot >= p.count {
            return;
        }
        let [x, y] = load::<E>(p, slot, vector);
        let mut h = [0f32; 8];
        unroll!(half < 2, {
            let gates = glu::gate::<E>(p.flags, [0, 1, 2, 3].map(|i| x[4 * half + i]));
            unroll!(i < 4, {
                h[4 * half + i] = E::mul(gates[i], y[4 * half + i]);
            });
        });
        let to = p.rows + slot as u64 * p.row_bytes as u64 + vector as u64 * 16;
        global::store_v4(to, E::put(&h));
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, RouteParams> for RouteGateGradient {
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
            let to = p.gates + slot as u64 * p.gate_bytes as u64;
            let mut vector = lane;
            while vector < p.vectors.value {
                warp::stay_rolled();
                let place = vector as u64 * 16;
                let h = global::load_v4_once(row + place, true);
                let g = global::load_v4_once(other + place, true);
                let [mut x, mut y] = load::<E>(p, slot, vector);
                let mut weighted = [0f32; 8];
                unroll!(i < 8, {
                    let (h, g) = (E::get(&h, i), E::get(&g, i));
                    sum = E::fma(h, g, sum);
                    weighted[i] = E::mul(weight, h);
                    let [gate, slope] = glu::gate_and_slope::<E>(p.flags, x[i]);
                    let g = E::mul(weight, g);
                    (x[i], y[i]) = (E::mul(g, E::mul(slope, y[i])), E::mul(g, gate));
                });
                global::store_v4(row + place, E::put(&weighted));
                global::store_v4(to + place, E::put(&x));
                global::store_v4(to + p.vectors.value as u64 * 16 + place, E::put(&y));
                vector += 32;
            }
        }
        super::gradient::leave(p, choice, sum);
    }
}
