//! One lane per channel: `Out[b,o,u] = C[a,y,o] * A[b,a,u] * Y[b,y] * D[b,d,u]`. A warp has an item and 32 channels.
//! The coefficients times Y form a sparse matrix of the item; all items share its pattern.

use super::stage;
use crate::device::epilogue::store_or_add;
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

impl<W: WalkInfo, E: Elem> Kernel<W, E, TensorProductParams> for TensorChannels {
    #[inline(always)]
    unsafe fn run(p: &TensorProductParams, _: u64) {
        let s = p.layout(Self::STEP, E::ACC_BYTES, Self::THREADS);
        let smem = copy::dynamic_shared();
        let row = 32 * E::ACC_BYTES;
        stage::segments(p, p.lists, smem, row, Self::THREADS);
        stage::entries::<E>(p, &s, p.lists, [E::ACC_BYTES, 0], Self::THREADS);
        stage::pairs(p, &s, p.lists, row, Self::THREADS);
        gpu::sync_threads();
        let (warp, lane) = (gpu::thread() / 32, gpu::thread() % 32);
        let own = smem + s.own + warp * s.own_bytes;
        let chunks = p.width.div_ceil(32);
        let tasks = p.items as u64 * chunks as u64;
        let warps = Self::THREADS as u64 / 32;
        let mut task = gpu::block_x() as u64 * warps + warp as u64;
        while task < tasks {
            // The host guarantees a nonzero divisor. `checked_div` avoids a panic, which device code must not have.
            let item = task.checked_div(chunks as u64).unwrap_or(0);
            let channel = (task - item * chunks as u64) as u32 * 32;
            let left = p.width - channel;
            load::<E>(p, &s, own, item, channel);
            copy::cp_async_wait_all();
            warp::sync(u32::MAX);
            coefficients::<E>(p, &s, own);
            warp::sync(u32::MAX);
            let to =
                p.out + (item * p.item_strides[4] + channel as u64 + lane as u64) * E::BYTES as u64;
            products::<E>(p, &s, own, to, lane < left);
            warp::sync(u32::MAX);
            task += gpu::grid_x() as u64 * warps;
        }
    }
}

/// Loads an item's rows of A, D and Y.
#[inline(always)]
fn load<E: Elem>(p: &TensorProductParams, s: &TensorShared, own: u32, item: u64, channel: u32) {
    let left = p.width - channel;
    let wide = p.flags & FLAG_WIDE != 0;
    let bytes = E::BYTES as u64;
    let a = p.a + (item * p.item_strides[0] + channel as u64) * bytes;
    stage::rows::<E>(own, a, p.row_strides[0], [p.rows[0], left], wide);
    let d = p.d + (item * p.item_strides[2] + channel as u64) * bytes;
    stage::rows::<E>(own + s.parts[1], d, p.row_strides[1], [p.rows[2], left], wide);
    let mut row = gpu::thread() % 32;
    while row < p.rows[1] {
        let y = E::ld_nc::<1>(p.y + (item * p.item_strides[1] + row as u64) * bytes, true);
        E::st_shared(own + s.parts[0] + row * E::ACC_BYTES, E::get(&y, 0));
        row += 32;
    }
}

/// Computes each pair's coefficient for this item, stored next to the offset of its row of A. One lane per pair.
#[inline(always)]
pub fn coefficients<E: Elem>(p: &TensorProductParams, s: &TensorShared, own: u32) {
    let smem = copy::dynamic_shared();
    let y = own + s.parts[0];
    let mut pair = gpu::thread() % 32;
    while pair < p.counts[1] {
        let [a, entries] = copy::ld_shared_v2(smem + s.pairs + pair * 8);
        let mut sum = E::ZERO;
        let mut at = entries & 0xffff;
        let end = at + (entries >> 16);
        while at < end {
            let code = copy::ld_shared_b32(smem + s.codes + at * 4);
            let value = E::ld_shared(smem + s.values + at * E::ACC_BYTES);
            sum = E::fma(value, E::ld_shared(y + code), sum);
            at += 1;
        }
        let words = E::words(sum);
        let to = own + s.parts[3] + pair * 2 * E::ACC_BYTES;
        if E::ACC_BYTES == 8 {
            copy::st_shared_v4(to, [a, 0, words[0], words[1]]);
        } else {
            copy::st_shared_v2(to, [a, words[0]]);
        }
        pair += 32;
    }
}

/// Computes all rows of the output for this lane's channel.
#[inline(always)]
fn products<E: Elem>(p: &TensorProductParams, s: &TensorShared, own: u32, to: u64, ok: bool) {
    let smem = copy::dynamic_shared();
    let size = 2 * E::ACC_BYTES;
    let a = own + gpu::thread() % 32 * E::ACC_BYTES;
    let d = a + s.parts[1];
    let mut total = E::ZERO;
    let mut segment = 0;
    while segment < p.counts[0] {
        let [first, count, right, row] = copy::ld_shared_v4(smem + segment * 16);
        let mut sum = E::ZERO;
        let mut at = own + s.parts[3] + first * size;
        let end = at + count * size;
        while at + size < end {
            let [(low, c), (high, e)] = two::<E>(at);
            let (x, z) = (E::ld_shared(a + low), E::ld_shared(a + high));
            sum = E::fma(c, x, sum);
            sum = E::fma(e, z, sum);
            at += 2 * size;
        }
        if at < end {
            let (low, c) = one::<E>(at);
            sum = E::fma(c, E::ld_shared(a + low), sum);
        }
        total = if right == TENSOR_NONE {
            E::add(total, sum)
        } else {
            E::fma(E::ld_shared(d + right), sum, total)
        };
        if row & TENSOR_LAST != 0 {
            let row = (row & !TENSOR_LAST) as u64;
            let to = to + row * p.row_strides[3] * E::BYTES as u64;
            store_or_add::<E>(to, total, p.flags & FLAG_ACCUMULATE != 0, ok);
            total = E::ZERO;
        }
        segment += 1;
    }
}

/// Loads a pair: the offset of its row of A, and its coefficient.
#[inline(always)]
pub fn one<E: Elem>(from: u32) -> (u32, E::Acc) {
    if E::ACC_BYTES == 8 {
        let [a, _, low, high] = copy::ld_shared_v4(from);
        (a, E::from_words([low, high]))
    } else {
        let [a, low] = copy::ld_shared_v2(from);
        (a, E::from_words([low, 0]))
    }
}

/// Loads two pairs; the index of the first is even.
#[inline(always)]
fn two<E: Elem>(from: u32) -> [(u32, E::Acc); 2] {
    if E::ACC_BYTES == 8 {
        [one::<E>(from), one::<E>(from + 16)]
    } else {
        let [a, low, b, high] = copy::ld_shared_v4(from);
        [(a, E::from_words([low, 0])), (b, E::from_words([high, 0]))]
    }
}
