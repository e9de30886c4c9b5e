//! One lane per item: `Out[b,o] = C[a,y,o] * A[b,a] * Y[b,y]`. A thread block has a tile of 32 items, and a warp every
//! eighth row of the output. Operands and output of the tile are in shared memory, so that accesses to global memory
//! cover whole lines. Other thread blocks overlap the copies.

use super::{load_four, put_items, stage};
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

#[inline(always)]
pub fn run<E: Elem, T: Tile>(p: &TensorProductParams) {
    let s = &p.layout(T::STEP, E::ACC_BYTES, T::THREADS);
    let warps = [gpu::thread() / 32, T::THREADS / 32];
    let own = s.own::<E>(0);
    let first = gpu::block_x() * TENSOR_ITEMS;
    stage::tile::<E>(p, 0, own, first, warps);
    stage::tile::<E>(p, 1, own.bytes(s.parts[0]), first, warps);
    stage::lists::<E, T>(p, s, p.lists());
    gpu::sync_threads();
    products::<E, T>(p, s);
    gpu::sync_threads();
    put_items::<E, T>(p, s, own.bytes(s.parts[1]));
}

/// Computes this warp's rows of the output into shared memory.
#[inline(always)]
fn products<E: Elem, T: Tile>(p: &TensorProductParams, s: &TensorShared) {
    let (number, lane) = (gpu::thread() / 32, gpu::thread() % 32);
    let a = s.own::<E>(0).at(lane);
    let y = a.bytes(s.parts[0]);
    let out = s.own::<E>(0).bytes(s.parts[1]).at(lane * (p.rows[4] | 1));
    let mut segment = number;
    while segment < p.counts[0] {
        warp::nounroll();
        let [start, count, _, row] = s.segments().at(segment).ld();
        let mut sum = E::ZERO;
        let mut done = 0;
        while done < count {
            warp::nounroll();
            let at = start + done;
            let codes = s.codes().at(at).cast::<[u32; 4]>().ld();
            let values = load_four::<E>(s.values::<E>().at(at));
            let mut terms = [(E::ZERO, E::ZERO); 4];
            unroll!(i < 4, {
                let right = y.bytes(codes[i] & 0xffff).ld();
                terms[i] = (a.bytes(codes[i] >> 16).ld(), E::mul(values[i], right));
            });
            unroll!(i < 4, {
                if done + (i as u32) < count {
                    sum = E::fma(terms[i].0, terms[i].1, sum);
                }
            });
            done += 4;
        }
        out.at(row & !TENSOR_LAST).st(sum);
        segment += T::THREADS / 32;
    }
}
