//! Sums over channels: `Out[b,o] = C[pair,o] * A[b,a,u] * D[b,d,u] * F[b,f,u]`. A warp has an item; a lane sums the
//! products of one pair's rows. Each lane begins at a different channel, which avoids bank conflicts.

use super::stage;
use crate::device::epilogue::store_or_add;
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

impl<W: WalkInfo, E: Elem> Kernel<W, E, TensorProductParams> for TensorSums {
    #[inline(always)]
    unsafe fn run(p: &TensorProductParams, _: u64) {
        let s = p.layout(Self::STEP, E::ACC_BYTES, Self::THREADS);
        let smem = copy::dynamic_shared();
        stage::segments(p, p.lists, smem, 1, Self::THREADS);
        stage::entries::<E>(p, &s, p.lists, [E::ACC_BYTES, 0], Self::THREADS);
        pairs(p, &s, 32 * E::ACC_BYTES);
        gpu::sync_threads();
        let own = smem + s.own + gpu::thread() / 32 * s.own_bytes;
        let warps = Self::THREADS / 32;
        let mut item = gpu::block_x() as u64 * warps as u64 + gpu::thread() as u64 / 32;
        while item < p.items as u64 {
            let mut channel = 0;
            while channel < p.width {
                load::<E>(p, &s, own, item, channel);
                copy::cp_async_wait_all();
                warp::sync(u32::MAX);
                dots::<E>(p, &s, own, channel == 0);
                warp::sync(u32::MAX);
                channel += 32;
            }
            outputs::<E>(p, &s, own, item);
            warp::sync(u32::MAX);
            item += (gpu::grid_x() * warps) as u64;
        }
    }
}

/// Copies the pairs: offsets of rows of A, D and F; `TENSOR_NONE` without F.
#[inline(always)]
fn pairs(p: &TensorProductParams, s: &TensorShared, row: u32) {
    let list = p.lists + p.counts[0] as u64 * 16;
    let mut at = gpu::thread();
    while at < p.counts[1] {
        let [a, f, d, _] = global::ld_nc_v4(list + at as u64 * 16, true);
        let f = if f == TENSOR_NONE { f } else { f * row };
        let to = copy::dynamic_shared() + s.pairs + at * 16;
        copy::st_shared_v4(to, [a * row, f, d * row, 0]);
        at += TensorSums::THREADS;
    }
}

/// Copies 32 channels of an item's rows of A, D and F.
#[inline(always)]
fn load<E: Elem>(p: &TensorProductParams, s: &TensorShared, own: u32, item: u64, channel: u32) {
    let left = p.width - channel;
    let wide = p.flags & FLAG_WIDE != 0;
    let from = |operand: u64, which: usize| {
        operand + (item * p.item_strides[which] + channel as u64) * E::BYTES as u64
    };
    stage::rows::<E>(own, from(p.a, 0), p.row_strides[0], [p.rows[0], left], wide);
    let d = own + s.parts[1];
    stage::rows::<E>(d, from(p.d, 2), p.row_strides[1], [p.rows[2], left], wide);
    let f = own + s.parts[2];
    stage::rows::<E>(f, from(p.f, 3), p.row_strides[2], [p.rows[3], left], wide);
}

#[inline(always)]
fn dots<E: Elem>(p: &TensorProductParams, s: &TensorShared, own: u32, is_first: bool) {
    let lane = gpu::thread() % 32;
    let mut pair = lane;
    while pair < p.counts[1] {
        let [a, f, d, _] = copy::ld_shared_v4(copy::dynamic_shared() + s.pairs + pair * 16);
        let to = own + s.parts[3] + pair * E::ACC_BYTES;
        let mut sum = if is_first { E::ZERO } else { E::ld_shared(to) };
        let (a, d) = (own + a, own + s.parts[1] + d);
        let mut step = 0;
        while step < 32 {
            unroll!(i < 4, {
                let channel = (lane + step + i as u32) % 32 * E::ACC_BYTES;
                let mut x = E::ld_shared(a + channel);
                if f != TENSOR_NONE {
                    x = E::mul(x, E::ld_shared(own + s.parts[2] + f + channel));
                }
                sum = E::fma(x, E::ld_shared(d + channel), sum);
            });
            step += 4;
        }
        E::st_shared(to, sum);
        pair += 32;
    }
}

/// Computes rows of the output, one per lane.
#[inline(always)]
fn outputs<E: Elem>(p: &TensorProductParams, s: &TensorShared, own: u32, item: u64) {
    let smem = copy::dynamic_shared();
    let sums = own + s.parts[3];
    let mut segment = gpu::thread() % 32;
    while segment < p.counts[0] {
        let [first, count, _, row] = copy::ld_shared_v4(smem + segment * 16);
        let mut sum = E::ZERO;
        let mut at = first;
        while at < first + count {
            let code = copy::ld_shared_b32(smem + s.codes + at * 4);
            let value = E::ld_shared(smem + s.values + at * E::ACC_BYTES);
            sum = E::fma(value, E::ld_shared(sums + code), sum);
            at += 1;
        }
        let row = (row & !TENSOR_LAST) as u64;
        let to = p.out + (item * p.item_strides[4] + row) * E::BYTES as u64;
        store_or_add::<E>(to, sum, p.flags & FLAG_ACCUMULATE != 0, true);
        segment += 32;
    }
}
