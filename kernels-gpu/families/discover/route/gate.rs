//! Gated hidden rows of a layer in training, which keeps the products that its gradients read: `h = gate(x) y` for
//! products `[x, y]`. The gradients of both replace them.

use crate::device::prelude::*;
use crate::families::discover::abi::*;

/// Loads eight inputs of gates of a row, and their multiplicands.
#[inline(always)]
pub fn load<E: Elem<Acc = f32>>(p: &RouteParams, slot: u32, vector: u32) -> [[f32; 8]; 2] {
    let row = p.gates().row(slot, p.gate_bytes);
    [vector, p.vectors.value + vector].map(|vector| {
        let raw = row.at(vector).ld_once_if(true);
        [0, 1, 2, 3, 4, 5, 6, 7].map(|i| E::get(&raw, i))
    })
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, RouteParams> for RouteGate {
    #[inline(always)]
    unsafe fn run(p: &RouteParams, _: Maps) {
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
        p.rows().row(slot, p.row_bytes).at(vector).st(E::put(&h));
    }
}
