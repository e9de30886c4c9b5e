//! One lane per item: `Out[b,o] = C[a,y,o] * A[b,a] * Y[b,y]`. Rows of the output are distributed to warps round-robin.

use super::{load_four, stage};
use crate::device::epilogue::store_or_add;
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

impl<W: WalkInfo, E: Elem> Kernel<W, E, TensorProductParams> for TensorItems {
    #[inline(always)]
    unsafe fn run(p: &TensorProductParams, _: u64) {
        let s = p.layout(Self::STEP, E::ACC_BYTES, Self::THREADS);
        let warps = [gpu::thread() / 32, Self::THREADS / 32];
        let smem = copy::dynamic_shared();
        let first = gpu::block_x() * TENSOR_ITEMS;
        let left = p.items - first;
        let own = smem + s.own;
        let tall = TENSOR_STRIDE * E::ACC_BYTES;
        let from = |operand: u64, which: usize| {
            operand + first as u64 * p.item_strides[which] * E::BYTES as u64
        };
        stage::tile::<E>(own, from(p.a, 0), p.item_strides[0], [p.rows[0], left], warps);
        let y = own + s.parts[0];
        stage::tile::<E>(y, from(p.y, 1), p.item_strides[1], [p.rows[1], left], warps);
        stage::segments(p, p.lists, smem, 1, Self::THREADS);
        stage::entries::<E>(p, &s, p.lists, [tall, tall], Self::THREADS);
        gpu::sync_threads();
        products::<E>(p, &s);
        gpu::sync_threads();
        store::<E>(p, own + s.parts[1], left);
    }
}

/// Computes every eighth row of the output into shared memory.
#[inline(always)]
fn products<E: Elem>(p: &TensorProductParams, s: &TensorShared) {
    let (number, lane) = (gpu::thread() / 32, gpu::thread() % 32);
    let smem = copy::dynamic_shared();
    let a = smem + s.own + lane * E::ACC_BYTES;
    let y = a + s.parts[0];
    let out = smem + s.own + s.parts[1] + lane * (p.rows[4] | 1) * E::ACC_BYTES;
    let mut segment = number;
    while segment < p.counts[0] {
        warp::nounroll();
        let [start, count, _, row] = copy::ld_shared_v4(smem + segment * 16);
        let mut sum = E::ZERO;
        let mut done = 0;
        while done < count {
            warp::nounroll();
            let at = start + done;
            let codes = copy::ld_shared_v4(smem + s.codes + at * 4);
            let values = load_four::<E>(smem + s.values + at * E::ACC_BYTES);
            let mut terms = [(E::ZERO, E::ZERO); 4];
            unroll!(i < 4, {
                let right = E::ld_shared(y + (codes[i] & 0xffff));
                terms[i] = (E::ld_shared(a + (codes[i] >> 16)), E::mul(values[i], right));
            });
            unroll!(i < 4, {
                if done + (i as u32) < count {
                    sum = E::fma(terms[i].0, terms[i].1, sum);
                }
            });
            done += 4;
        }
        E::st_shared(out + (row & !TENSOR_LAST) * E::ACC_BYTES, sum);
        segment += TensorItems::THREADS / 32;
    }
}

/// Stores the tile of the output, item by item.
#[inline(always)]
fn store<E: Elem>(p: &TensorProductParams, from: u32, left: u32) {
    let (number, lane) = (gpu::thread() / 32, gpu::thread() % 32);
    let first = gpu::block_x() * TENSOR_ITEMS;
    let mut item = number;
    while item < TENSOR_ITEMS && item < left {
        warp::nounroll();
        let to = p.out + (first + item) as u64 * p.item_strides[4] * E::BYTES as u64;
        let mut row = lane;
        while row < p.rows[4] {
            warp::nounroll();
            let at = item * (p.rows[4] | 1) + row;
            let value = E::ld_shared(from + at * E::ACC_BYTES);
            let to = to + row as u64 * E::BYTES as u64;
            store_or_add::<E>(to, value, p.flags & FLAG_ACCUMULATE != 0, true);
            row += 32;
        }
        item += TensorItems::THREADS / 32;
    }
}
