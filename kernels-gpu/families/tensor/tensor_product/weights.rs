//! Gradient of a matrix that all items share: `Out[o,u,w] = C[a,y,f,o] * A[b,a,u] * Y[b,y] * F[b,f,w]`. A warp has a
//! row of the output, 32 x 32 of its channels, and a strided subset of the tiles of 32 items. The thread blocks of a
//! row store partial sums, and the last one to arrive adds them in order.

use super::connected::{Sums, four, left_side, lists, pairs};
use super::{load_four, stage};
use crate::device::epilogue::store_or_add;
use crate::device::prelude::*;
use crate::device::split_k::block_arrives_last;
use crate::families::tensor::abi::*;

impl<W: WalkInfo, E: Elem> Kernel<W, E, TensorProductParams> for TensorWeights {
    #[inline(always)]
    unsafe fn run(p: &TensorProductParams, _: u64) {
        let s = p.layout(Self::STEP, E::ACC_BYTES, Self::THREADS);
        let (warp, lane) = (gpu::thread() / 32, gpu::thread() % 32);
        let warps = Self::THREADS / 32;
        let smem = copy::dynamic_shared();
        let own = smem + s.own + warp * s.own_bytes;
        let ends = lists::<E>(p, &s, Self::STEP, Self::THREADS);
        gpu::sync_threads();
        let mut sums: Sums<E> = [[E::ZERO; 4]; 8];
        let tiles = p.items.div_ceil(TENSOR_ITEMS);
        let mut tile = gpu::block_x() * warps + warp;
        while tile < tiles {
            items_of::<E>(p, &s, own, tile, ends, &mut sums);
            tile += gpu::grid_x() * warps;
        }
        // The left operands are no longer needed: their memory now has 32 x 32 sums of each warp.
        warp::sync(u32::MAX);
        unroll!(i < 8, {
            unroll!(j < 4, {
                let at = (lane / 8 * 8 + i as u32) * TENSOR_LEFT + lane % 8 * 4 + j as u32;
                E::st_shared(own + at * E::ACC_BYTES, sums[i][j]);
            });
        });
        gpu::sync_threads();
        add_up::<E>(p, &s, smem + s.own);
        finish::<E>(p, smem);
    }
}

/// Adds the products of one tile of items.
#[inline(always)]
fn items_of<E: Elem>(
    p: &TensorProductParams,
    s: &TensorShared,
    own: u32,
    tile: u32,
    [mut segment, end]: [u32; 2],
    sums: &mut Sums<E>,
) {
    let first = tile * TENSOR_ITEMS;
    let lane = gpu::thread() % 32;
    let (coefficients, y) = (own + s.parts[3], own + s.parts[0]);
    let (channel, column) = corner(p);
    warp::sync(u32::MAX);
    let from = p.y + first as u64 * p.item_strides[1] * E::BYTES as u64;
    let sizes = [p.rows[1], p.items - first];
    stage::tile::<E>(y, from, p.item_strides[1], sizes, [0, 1]);
    warp::sync(u32::MAX);
    while segment < end {
        let [begin, count, row, _] = copy::ld_shared_v4(copy::dynamic_shared() + segment * 16);
        if count > 0 {
            pairs::<E>(s, y, coefficients, begin, count);
            warp::sync(u32::MAX);
            left_side::<E>(p, s, own, coefficients, [begin, count], [first, channel]);
            warp::sync(u32::MAX);
            let at = first as u64 * p.item_strides[3] + row as u64 * p.row_strides[2];
            let from = p.f + (at + (column + lane % 8 * 4) as u64) * E::BYTES as u64;
            outer::<E>(p, own, from, [first, column], sums);
            warp::sync(u32::MAX);
        }
        segment += 1;
    }
}

/// First channels of A and of F in this thread block's part of the output.
#[inline(always)]
fn corner(p: &TensorProductParams) -> (u32, u32) {
    let across = p.out_width.div_ceil(32);
    let z = gpu::block_z();
    // The host guarantees a nonzero divisor. `checked_div` avoids a panic, which device code must not have.
    let row = z.checked_div(across).unwrap_or(0);
    (row * 32, (z - row * across) * 32)
}

/// Adds the left operand's transpose times rows of F. `from`: address of item `first` at this lane's channels.
#[inline(always)]
fn outer<E: Elem>(
    p: &TensorProductParams,
    left: u32,
    from: u64,
    [first, column]: [u32; 2],
    sums: &mut Sums<E>,
) {
    let lane = gpu::thread() % 32;
    let channel = column + lane % 8 * 4;
    let inside = p.out_width - channel.min(p.out_width);
    let stride = p.item_strides[3] * E::BYTES as u64;
    let left = left + lane / 8 * 8 * E::ACC_BYTES;
    let mut item = 0;
    while item < TENSOR_ITEMS && first + item < p.items {
        let mut right = [[E::ZERO; 4]; 4];
        unroll!(k < 4, {
            let at = item + k as u32;
            let valid = if first + at < p.items { inside } else { 0 };
            right[k] = four::<E>(from + at as u64 * stride, valid, p.flags & FLAG_WIDE != 0);
        });
        unroll!(k < 4, {
            let row = left + (item + k as u32) * TENSOR_LEFT * E::ACC_BYTES;
            let low = load_four::<E>(row);
            let high = load_four::<E>(row + 4 * E::ACC_BYTES);
            unroll!(i < 4, {
                unroll!(j < 4, {
                    sums[i][j] = E::fma(low[i], right[k][j], sums[i][j]);
                    sums[i + 4][j] = E::fma(high[i], right[k][j], sums[i + 4][j]);
                });
            });
        });
        item += 4;
    }
}

/// Address of the sums of a thread block of the same part of the output.
#[inline(always)]
fn slot<E: Elem>(p: &TensorProductParams, block: u32) -> u64 {
    let part = gpu::block_z() as u64 * p.rows[4] as u64 + gpu::block_y() as u64;
    let at = part * gpu::grid_x() as u64 + block as u64;
    p.sums + at * 1024 * E::ACC_BYTES as u64
}

/// Adds the sums of the warps in order into this thread block's slot.
#[inline(always)]
fn add_up<E: Elem>(p: &TensorProductParams, s: &TensorShared, own: u32) {
    let to = slot::<E>(p, gpu::block_x());
    let mut at = gpu::thread();
    while at < 1024 {
        let from = own + (at / 32 * TENSOR_LEFT + at % 32) * E::ACC_BYTES;
        let mut sum = E::ld_shared(from);
        unroll!(i < 3, {
            sum = E::add(sum, E::ld_shared(from + (i as u32 + 1) * s.own_bytes));
        });
        E::store_acc(to + at as u64 * E::ACC_BYTES as u64, sum);
        at += TensorWeights::THREADS;
    }
}

/// The thread block that arrives last at the part's counter adds all slots in order and resets the counter to zero.
#[inline(always)]
fn finish<E: Elem>(p: &TensorProductParams, smem: u32) {
    let part = gpu::block_z() * p.rows[4] + gpu::block_y();
    let counter = p.counters + part as u64 * 4;
    if !block_arrives_last(counter, gpu::grid_x(), smem) {
        return;
    }
    let (channel, column) = corner(p);
    let mut at = gpu::thread();
    while at < 1024 {
        let mut sum = E::ZERO;
        let mut block = 0;
        while block < gpu::grid_x() {
            let mut parts = [E::ZERO; 8];
            unroll!(i < 8, {
                let from = slot::<E>(p, block + i as u32) + at as u64 * E::ACC_BYTES as u64;
                parts[i] = E::load_acc(from, block + (i as u32) < gpu::grid_x());
            });
            unroll!(i < 8, {
                sum = E::add(sum, parts[i]);
            });
            block += 8;
        }
        let (row, across) = (channel + at / 32, column + at % 32);
        if row < p.width && across < p.out_width {
            let place = gpu::block_y() as u64 * p.item_strides[4]
                + row as u64 * p.row_strides[3]
                + across as u64;
            let to = p.out + place * E::BYTES as u64;
            store_or_add::<E>(to, sum, p.flags & FLAG_ACCUMULATE != 0, true);
        }
        at += TensorWeights::THREADS;
    }
}
