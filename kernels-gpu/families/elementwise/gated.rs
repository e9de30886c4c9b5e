//! Gates of gated linear units (arXiv 2002.05202). All data is read once and written once.

use crate::device::prelude::*;
use crate::families::elementwise::abi::*;

by_vectors! {
    GatedParams GatedTile: vector;
}

#[inline(always)]
fn vector<E: Elem<Acc = f32>, const V: usize>(p: &GatedParams) {
    let index = gpu::block_x() as u64 * ELEMENTWISE_THREADS as u64 + gpu::thread() as u64;
    let across = (p.columns / V as u32) as u64;
    // The divisor below must not be zero.
    if across == 0 {
        return;
    }
    let (row, column) = (index / across, (index % across) * V as u64);
    if row >= p.rows as u64 {
        return;
    }
    let from = p.x + row * p.x_row as u64 + column * E::BYTES as u64;
    let (gates, factors) = (E::ld_global::<V>(from, true), E::ld_global::<V>(from + p.apart, true));
    let mut out = [0.0; V];
    unroll!(four < 2, {
        let mut x = [0.0; 4];
        unroll!(i < 4, {
            if 4 * four + i < V {
                x[i] = E::get(&gates, 4 * four + i);
            }
        });
        let x = glu::gate::<E>(p.flags, x);
        unroll!(i < 4, {
            if 4 * four + i < V {
                out[4 * four + i] = x[i] * E::get(&factors, 4 * four + i);
            }
        });
    });
    E::store::<V>(p.out + row * p.out_row as u64 + column * E::BYTES as u64, &out);
}
