//! Function of every element, and its gradient. All data is read once and written once.

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
    let index = gpu::block_x() as u64 * ELEMENTWISE_THREADS as u64 + gpu::thread() as u64;
    let across = (p.columns / V as u32) as u64;
    // Checked: only the host guarantees that the divisor is nonzero.
    let row = index.checked_div(across).unwrap_or(0);
    let column = (index - row * across) * (V as u32 * E::BYTES) as u64;
    if row >= p.rows as u64 {
        return;
    }
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
        unroll!(four < 2, {
            let mut own = [0.0; 4];
            unroll!(i < 4, {
                if 4 * four + i < V {
                    own[i] = E::get(&x, 4 * four + i);
                }
            });
            let own = glu::gate::<E>(p.flags, own);
            unroll!(i < 4, {
                if 4 * four + i < V {
                    out[4 * four + i] = own[i];
                }
            });
        });
    }
    at(p.out(), 2).st_rounded(&out);
}
