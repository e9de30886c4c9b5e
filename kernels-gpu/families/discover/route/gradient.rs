//! Gradient of the weights of the choices: for each slot the dot product of its hidden row with the row's gradient
//! before the weight. Both rows are also weighted in place, for the gradients of the matrices and of the tokens. With a
//! gate, the row's gradient becomes those of both products, which replace the products.

use super::gate;
use crate::device::lanes;
use crate::device::prelude::*;
use crate::families::discover::abi::*;

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, RouteParams> for RouteGradient {
    #[inline(always)]
    unsafe fn run(p: &RouteParams, _: Maps) {
        gradient::<E, false>(p);
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, RouteParams> for RouteGateGradient {
    #[inline(always)]
    unsafe fn run(p: &RouteParams, _: Maps) {
        gradient::<E, true>(p);
    }
}

#[inline(always)]
fn gradient<E: Elem<Acc = f32>, const GATED: bool>(p: &RouteParams) {
    grid::wait_dependency();
    grid::launch_dependents();
    let slot = (gpu::block_x() * ROUTE_THREADS + gpu::thread()) / 32;
    if slot >= p.count {
        return;
    }
    let lane = gpu::thread() % 32;
    let choice = p.order().at(slot).ld();
    let routed = p.offsets().at(p.bins.value as u64 - 1).ld();
    let mut sum = 0.0;
    if slot < routed {
        let weight = p.weights().at(choice).ld();
        let (row, other) = (p.rows().row(slot, p.row_bytes), p.sums().row(slot, p.sum_bytes));
        let sums = p.gates().row(slot, p.gate_bytes);
        let mut vector = lane;
        while vector < p.vectors.value {
            if GATED {
                warp::nounroll();
            }
            let h = row.at(vector).ld_once_if(true);
            let g = other.at(vector).ld_once_if(true);
            let [mut x, mut y] =
                if GATED { gate::load::<E>(p, slot, vector) } else { [[0.0; 8]; 2] };
            let mut weighted = [0f32; 8];
            unroll!(i < 8, {
                let (h, g) = (E::get(&h, i), E::get(&g, i));
                sum = E::fma(h, g, sum);
                weighted[i] = E::mul(weight, h);
                let g = E::mul(weight, g);
                if GATED {
                    let [gate, slope] = glu::gate_and_slope::<E>(p.flags, x[i]);
                    let own = E::mul(g, E::mul(slope, y[i]));
                    // The ReLU mask is a select: 0 times Inf would be NaN.
                    let masked = p.flags & FLAG_RELU != 0 && slope == 0.0;
                    (x[i], y[i]) = (if masked { 0.0 } else { own }, E::mul(g, gate));
                } else {
                    x[i] = g;
                }
            });
            row.at(vector).st(E::put(&weighted));
            if GATED {
                sums.at(vector).st(E::put(&x));
                sums.at(p.vectors.value).at(vector).st(E::put(&y));
            } else {
                other.at(vector).st(E::put(&x));
            }
            vector += 32;
        }
    }
    let sum = lanes::sum(sum);
    if lane == 0 {
        p.gradient().at(choice).st(sum);
    }
}
