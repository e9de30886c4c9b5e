//! Sums over both channels of a matrix: `Out[b,o] = C[a,o,..] * A[b,a,u] * F[b,f,w] * D[d,u,w]`, D shared by all items.
//! A warp has 32 items and every fourth segment. It multiplies rows of F by the matrix, then the products by rows of A.
//! The rows of F and a warp's totals are in shared memory, products and the next rows of the matrix in registers.

use super::tiles::{Sums, four, multiply};
use super::{clear, put_items, stage};
use crate::device::lanes::{UP, sum_of};
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

#[inline(always)]
pub fn run<E: Elem, T: Tile>(p: &TensorProductParams) {
    let s = &p.layout(T::STEP, E::ACC_BYTES, T::THREADS);
    let warp = gpu::thread() / 32;
    let own = s.own::<E>(warp);
    let totals = own.bytes(s.parts[3]);
    clear::<E>(totals, p.rows[4] * TENSOR_STRIDE);
    let mut segment = warp;
    while segment < p.counts[0] {
        segment_of::<E>(p, own, totals, segment);
        segment += T::THREADS / 32;
    }
    gpu::sync_threads();
    put_items::<E, T>(p, s, s.own::<E>(0).bytes(s.parts[3]));
}

/// Adds the contribution of one row of F and one matrix to the totals of this warp.
#[inline(always)]
fn segment_of<E: Elem>(
    p: &TensorProductParams,
    left: Shared<E::Acc>,
    totals: Shared<E::Acc>,
    segment: u32,
) {
    let [first, count, matrix, row] = p.lists().cast::<[u32; 4]>().at(segment).ld();
    let mut column = 0;
    while column < p.width {
        let mut sums: Sums<E> = [[E::ZERO; 4]; 8];
        let mut channel = 0;
        while channel < p.out_width {
            warp::sync(u32::MAX);
            rows_of_f::<E>(p, left, row & !TENSOR_LAST, channel);
            warp::sync(u32::MAX);
            let extents = [p.out_width, p.width];
            multiply::<E>(p, left, matrix, [channel, column], extents, &mut sums);
            channel += 32;
        }
        warp::sync(u32::MAX);
        let mut pair = first;
        while pair < first + count {
            products::<E>(p, totals, pair, column, &sums);
            pair += 1;
        }
        column += 32;
    }
}

/// Copies 32 channels of a row of F of all items.
#[inline(always)]
fn rows_of_f<E: Elem>(p: &TensorProductParams, to: Shared<E::Acc>, row: u32, channel: u32) {
    let lane = gpu::thread() % 32;
    let first = gpu::block_x() * TENSOR_ITEMS;
    let stride = p.item_strides[3] * E::BYTES as u64;
    let own = row as u64 * p.row_strides[2] + (channel + lane) as u64;
    let from = p.f::<E>().row(first, stride).at(own);
    let inside = channel + lane < p.out_width;
    let mut item = 0;
    while item < TENSOR_ITEMS {
        let from = |i| (from.row(item + i, stride), inside && first + item + i < p.items);
        stage::elements::<E, 8>(from, |i| (to.at((item + i) * TENSOR_LEFT + lane), true));
        item += 8;
    }
}

/// Sums over channels with a row of A, then adds them to the totals of its entries. Each lane has the sum of one item.
#[inline(always)]
fn products<E: Elem>(
    p: &TensorProductParams,
    totals: Shared<E::Acc>,
    pair: u32,
    column: u32,
    sums: &Sums<E>,
) {
    let lane = gpu::thread() % 32;
    let list = p.lists().cast::<[u32; 4]>().at(p.counts[0]);
    let [a, _, start, many] = list.at(pair).ld();
    let first = gpu::block_x() * TENSOR_ITEMS + lane / 8;
    let channel = column + lane % 8 * 4;
    let inside = p.width - channel.min(p.width);
    let mut own = E::ZERO;
    unroll!(i < 8, {
        let item = first + i as u32 * 4;
        let at = item as u64 * p.item_strides[0] + a as u64 * p.row_strides[0] + channel as u64;
        let valid = if item < p.items { inside } else { 0 };
        let wide = p.flags & FLAG_WIDE != 0;
        let x = four::<E>(p.a().at(at), valid, wide);
        let mut sum = E::mul(x[0], sums[i][0]);
        sum = E::fma(x[1], sums[i][1], sum);
        sum = E::fma(x[2], sums[i][2], sum);
        sum = E::fma(x[3], sums[i][3], sum);
        let sum = sum_of::<E>(sum, UP, 1..8);
        if lane % 8 == i as u32 {
            own = sum;
        }
    });
    let entries = list.at(p.counts[1]).cast::<[u32; 2]>();
    let alpha = E::scalar(p.alpha);
    let item = lane / 8 + lane % 8 * 4;
    let mut at = start;
    while at < start + many {
        let [code, place] = entries.at(at).ld();
        let value = p.values::<E>().at(place).ld_raw::<1>(true);
        let to = totals.at((code & 0xffff) * TENSOR_STRIDE + item);
        to.st(E::fma(E::mul(E::get(&value, 0), alpha), own, to.ld()));
        at += 1;
    }
}
