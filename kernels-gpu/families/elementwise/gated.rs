//! Gates of gated linear units (arXiv 2002.05202). All data is read once and written once.

use super::element::{gate, own_vector};
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
    let Some([row, vector]) = own_vector(p.rows, p.columns / V as u32) else {
        return;
    };
    let column = vector * V as u64;
    let from = p.x::<E>().bytes(row * p.x_row as u64).at(column);
    let (gates, factors) = (from.ld_raw::<V>(true), from.bytes(p.apart).ld_raw::<V>(true));
    let mut out = gate::<E, V>(p.flags, &gates);
    unroll!(i < V, { out[i] *= E::get(&factors, i) });
    p.out::<E>().bytes(row * p.out_row as u64).at(column).st_rounded(&out);
}
