//! A warp has an item, and its rows of 32 channels in shared memory. `channels`:
//! `Out[b,o,u] = C[a,y,o] * A[b,a,u] * Y[b,y] * D[b,d,u]`, one lane per channel. The coefficients times Y form a sparse
//! matrix of the item; all items share its pattern. `sums`: `Out[b,o] = C[pair,o] * A[b,a,u] * D[b,d,u] * F[b,f,u]`. A
//! lane sums the products of one pair's rows, from another channel on than its neighbors, which avoids bank conflicts.
//! Coefficients, and other warps, overlap the copies.

use super::{put, stage, terms};
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

#[inline(always)]
pub fn run<E: Elem, T: Tile>(p: &TensorProductParams) {
    let lane = gpu::thread() % 32;
    let sums = T::STEP == STEP_TENSOR_SUMS;
    let chunks = if sums { 1 } else { p.width.div_ceil(32) };
    stage::tasks::<E, T>(p, chunks, |s, own, item, first| {
        let mut channel = first;
        while if sums { channel < p.width } else { channel == first } {
            stage::rows::<E>(p, 0, own, item, [channel, p.width]);
            stage::rows::<E>(p, 2, own.bytes(s.parts[1]), item, [channel, p.width]);
            if sums {
                stage::rows::<E>(p, 3, own.bytes(s.parts[2]), item, [channel, p.width]);
            } else {
                stage::row_of_y::<E>(p, own.bytes(s.parts[0]), item);
                warp::sync(u32::MAX);
                coefficients::<E>(p, s, own);
            }
            copy::cp_async_wait_all();
            warp::sync(u32::MAX);
            if sums {
                dots::<E>(p, s, own, channel == 0);
                warp::sync(u32::MAX);
            } else {
                let at = item * p.item_strides[4] + channel as u64 + lane as u64;
                let to = p.out().at(at);
                products::<E>(p, s, own, to, lane < p.width - channel);
            }
            channel += 32;
        }
        if sums {
            outputs::<E>(p, s, own, item);
        }
    });
}

/// Computes each pair's coefficient for this item, stored next to the offset of its row of A. One lane per pair.
#[inline(always)]
pub fn coefficients<E: Elem>(p: &TensorProductParams, s: &TensorShared, own: Shared<E::Acc>) {
    let mut pair = gpu::thread() % 32;
    while pair < p.counts[1] {
        let [a, entries] = s.pairs::<[u32; 2]>().at(pair).ld();
        let sum = terms::<E, true>(s, [entries & 0xffff, entries >> 16], own.bytes(s.parts[0]));
        let words = E::words(sum);
        let to = own.bytes(s.parts[3]).at(pair * 2);
        if E::ACC_BYTES == 8 {
            to.cast::<[u32; 4]>().st([a, 0, words[0], words[1]]);
        } else {
            to.cast::<[u32; 2]>().st([a, words[0]]);
        }
        pair += 32;
    }
}

/// Computes all rows of the output for this lane's channel.
#[inline(always)]
fn products<E: Elem>(
    p: &TensorProductParams,
    s: &TensorShared,
    own: Shared<E::Acc>,
    to: Global<E, ReadWrite>,
    ok: bool,
) {
    let size = 2 * E::ACC_BYTES;
    let a = own.at(gpu::thread() % 32);
    let d = a.bytes(s.parts[1]);
    let mut total = E::ZERO;
    let mut segment = 0;
    while segment < p.counts[0] {
        let [first, count, right, row] = s.segments().at(segment).ld();
        let mut sum = E::ZERO;
        let mut at = own.bytes(s.parts[3]).bytes(first * size);
        let end = at.bytes(count * size).address();
        while at.address() + size < end {
            let [(low, c), (high, e)] = two::<E>(at);
            let (x, z) = (a.bytes(low).ld(), a.bytes(high).ld());
            sum = E::fma(c, x, sum);
            sum = E::fma(e, z, sum);
            at = at.bytes(2 * size);
        }
        if at.address() < end {
            let (low, c) = one::<E>(at);
            sum = E::fma(c, a.bytes(low).ld(), sum);
        }
        total = if right == TENSOR_NONE {
            E::add(total, sum)
        } else {
            E::fma(d.bytes(right).ld(), sum, total)
        };
        if row & TENSOR_LAST != 0 {
            let row = (row & !TENSOR_LAST) as u64;
            put::<E>(p, to.at(row * p.row_strides[3]), total, ok);
            total = E::ZERO;
        }
        segment += 1;
    }
}

/// Loads a pair: the offset of its row of A, and its coefficient.
#[inline(always)]
pub fn one<E: Elem>(from: Shared<E::Acc>) -> (u32, E::Acc) {
    if E::ACC_BYTES == 8 {
        let [a, _, low, high] = from.cast::<[u32; 4]>().ld();
        (a, E::from_words([low, high]))
    } else {
        let [a, low] = from.cast::<[u32; 2]>().ld();
        (a, E::from_words([low, 0]))
    }
}

/// Loads two pairs; the index of the first is even.
#[inline(always)]
fn two<E: Elem>(from: Shared<E::Acc>) -> [(u32, E::Acc); 2] {
    if E::ACC_BYTES == 8 {
        [one::<E>(from), one::<E>(from.at(2))]
    } else {
        let [a, low, b, high] = from.cast::<[u32; 4]>().ld();
        [(a, E::from_words([low, 0])), (b, E::from_words([high, 0]))]
    }
}

/// Adds 32 channels to the sums of the pairs.
#[inline(always)]
fn dots<E: Elem>(p: &TensorProductParams, s: &TensorShared, own: Shared<E::Acc>, is_first: bool) {
    let lane = gpu::thread() % 32;
    let mut pair = lane;
    while pair < p.counts[1] {
        let [a, f, d, _] = s.pairs::<[u32; 4]>().at(pair).ld();
        let to = own.bytes(s.parts[3]).at(pair);
        let mut sum = if is_first { E::ZERO } else { to.ld() };
        let (a, d) = (own.bytes(a), own.bytes(s.parts[1]).bytes(d));
        let mut step = 0;
        while step < 32 {
            unroll!(i < 4, {
                let channel = (lane + step + i as u32) % 32;
                let mut x = a.at(channel).ld();
                if f != TENSOR_NONE {
                    x = E::mul(x, own.bytes(s.parts[2]).bytes(f).at(channel).ld());
                }
                sum = E::fma(x, d.at(channel).ld(), sum);
            });
            step += 4;
        }
        to.st(sum);
        pair += 32;
    }
}

/// Computes rows of the output from the sums of the pairs, one per lane.
#[inline(always)]
fn outputs<E: Elem>(p: &TensorProductParams, s: &TensorShared, own: Shared<E::Acc>, item: u64) {
    let mut segment = gpu::thread() % 32;
    while segment < p.counts[0] {
        let [first, count, _, row] = s.segments().at(segment).ld();
        let sum = terms::<E, true>(s, [first, count], own.bytes(s.parts[3]));
        let row = (row & !TENSOR_LAST) as u64;
        put::<E>(p, p.out().at(item * p.item_strides[4] + row), sum, true);
        segment += 32;
    }
}
