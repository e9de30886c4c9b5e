//! Gates of gated linear units (arXiv 2002.05202). All data is read once and written once.

use crate::device::prelude::*;
use crate::families::elementwise::abi::*;

buffers! {
    // `nn::glu` checks the shapes of the operands. `GatedLaunch` sets `ELEMENTWISE_VECTORS` if
    // gates and factors are whole aligned vectors.
    unsafe GatedParams {
        x<E: Elem>: E, ReadWrite;
        out<E: Elem>: E, ReadWrite;
    }
}

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
    let from = p.x::<E>().bytes(row * p.x_row as u64).at(column);
    let (gates, factors) = (from.ld_raw::<V>(true), from.bytes(p.apart).ld_raw::<V>(true));
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
    p.out::<E>().bytes(row * p.out_row as u64).at(column).st_rounded(&out);
}
