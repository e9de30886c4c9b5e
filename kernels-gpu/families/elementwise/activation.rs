//! Function of every element, and its gradient. All data is read once and written once.

use super::element::{gate, own_vector};
use crate::device::prelude::*;
use crate::families::elementwise::abi::*;

buffers! {
    // `nn::activation` checks the shapes of the operands. `ActivationLaunch` sets
    // `ELEMENTWISE_VECTORS` if rows are whole aligned vectors.
    unsafe ActivationParams {
        x<E: Elem>: E, ReadWrite;
        dy<E: Elem>: E, ReadWrite;
        out<E: Elem>: E, ReadWrite;
    }
}

by_vectors! {
    ActivationParams ActivationTile: vector, false;
    ActivationParams ActivationGradientTile: vector, true;
}

#[inline(always)]
fn vector<E: Elem<Acc = f32>, const V: usize, const BACKWARD: bool>(p: &ActivationParams) {
    let Some([row, vector]) = own_vector(p.rows, p.columns / V as u32) else {
        return;
    };
    let column = vector * (V as u32 * E::BYTES) as u64;
    let at = |matrix: Global<E, ReadWrite>, of: usize| {
        matrix.bytes(row * p.row_bytes[of] as u64).bytes(column)
    };
    let x = at(p.x(), 0).ld_raw::<V>(true);
    let mut out = [0.0; V];
    if BACKWARD {
        let dy = at(p.dy(), 1).ld_raw::<V>(true);
        unroll!(i < V, {
            let [_, slope] = glu::gate_and_slope::<E>(p.flags, E::get(&x, i));
            // ReLU masks the gradient, since 0 times Inf is NaN.
            let masked = p.flags & FLAG_RELU != 0 && slope == 0.0;
            out[i] = if masked { 0.0 } else { slope * E::get(&dy, i) };
        });
    } else {
        out = gate::<E, V>(p.flags, &x);
    }
    at(p.out(), 2).st_rounded(&out);
}
