//! Gated hidden rows of a layer in training, which keeps the products that its gradients read: `h = gate(x) y` for
//! products `[x, y]`. The gradients of both replace them.

use crate::device::prelude::*;
use crate::families::discover::abi::*;

/// Loads eight inputs of gates of a row, and their multiplicands.
#[inline(always)]
pub fn load<E: Elem<Acc = f32>>(p: &RouteParams, slot: u32, vector: u32) -> [[f32; 8]; 2] {
    let row = p.gates + slot as u64 * p.gate_bytes as u64;
    [vector, p.vectors.value + vector].map(|vector| {
        let raw = global::ld_no_allocate_v4(row + vector as u64 * 16, true);
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
        global::st_v4(to, E::put(&h));
    }
}
