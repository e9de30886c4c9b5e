//! Channels to channels with a matrix for each item, which is read once:
//! `Out[b,o,w] = C[a,y,o] * A[b,a,u] * Y[b,y] * D[b,d,u,w]`, and its sums over both channels,
//! `Out[b,o] = C[a,o,..] * A[b,a,u] * F[b,f,w] * D[b,d,u,w]`. A warp has an item. A lane keeps 32 elements of a matrix
//! column in registers while it multiplies them by every row that uses the matrix.

use super::channels::coefficients;
use super::{load_four, stage};
use crate::device::epilogue::store_or_add;
use crate::device::lanes::{UP, sum_of};
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

/// A lane's part of a column: element `8 i + j` is at `[i][j]`.
type Column<E> = [[<E as Elem>::Acc; 8]; 4];

/// The work of a warp: an item, and the corner of 32 rows and 32 columns of its matrices.
#[derive(Clone, Copy)]
pub struct Place {
    pub own: u32,
    pub item: u64,
    pub channel: u32,
    pub column: u32,
}

/// Calls `each` for the items of this warp and `chunks` parts of 32 channels of each.
#[inline(always)]
pub fn tasks(p: &TensorProductParams, chunks: u32, threads: u32, mut each: impl FnMut(u64, u32)) {
    let warps = threads as u64 / 32;
    let mut task = gpu::block_x() as u64 * warps + gpu::thread() as u64 / 32;
    while task < p.items as u64 * chunks as u64 {
        warp::nounroll();
        // The host guarantees a nonzero divisor. `checked_div` avoids a panic, which device code must not have.
        let item = task.checked_div(chunks as u64).unwrap_or(0);
        each(item, (task - item * chunks as u64) as u32 * 32);
        task += gpu::grid_x() as u64 * warps;
    }
}

/// Copies the lists to shared memory.
#[inline(always)]
pub fn lists<E: Elem>(p: &TensorProductParams, step: u32, threads: u32) -> (TensorShared, u32) {
    let s = &p.layout(step, E::ACC_BYTES, threads);
    stage::segments(p, p.lists, copy::dynamic_shared(), 1, threads);
    stage::entries::<E>(p, s, p.lists, [E::ACC_BYTES, 0], threads);
    stage::pairs(p, s, p.lists, 32 * E::ACC_BYTES, threads);
    gpu::sync_threads();
    (*s, copy::dynamic_shared() + s.own + gpu::thread() / 32 * s.own_bytes)
}

/// Copies 32 channels of all rows of A (0) or F (3) of an item.
#[inline(always)]
pub fn rows<E: Elem>(
    p: &TensorProductParams,
    which: usize,
    to: u32,
    item: u64,
    [channel, width]: [u32; 2],
) {
    let (operand, stride) =
        if which == 0 { (p.a, p.row_strides[0]) } else { (p.f, p.row_strides[2]) };
    let from = operand + (item * p.item_strides[which] + channel as u64) * E::BYTES as u64;
    let wide = p.flags & FLAG_WIDE != 0;
    stage::rows::<E>(to, from, stride, [p.rows[which], width - channel], wide);
}

/// Copies 32 channels of all rows of A of an item. For the first channels it also computes the pair coefficients.
#[inline(always)]
pub fn left_rows<E: Elem>(
    p: &TensorProductParams,
    s: &TensorShared,
    own: u32,
    item: u64,
    channel: u32,
) {
    rows::<E>(p, 0, own, item, [channel, p.width]);
    copy::cp_async_wait_all();
    warp::sync(u32::MAX);
    if channel == 0 {
        coefficients::<E>(p, s, own);
        warp::sync(u32::MAX);
    }
}

#[inline(always)]
pub fn row_of_y<E: Elem>(p: &TensorProductParams, to: u32, item: u64) {
    let mut row = gpu::thread() % 32;
    while row < p.rows[1] {
        warp::nounroll();
        let from = p.y + (item * p.item_strides[1] + row as u64) * E::BYTES as u64;
        let y = E::ld_nc::<1>(from, true);
        E::st_shared(to + row * E::ACC_BYTES, E::get(&y, 0));
        row += 32;
    }
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, TensorProductParams> for TensorOwnConnected {
    #[inline(always)]
    unsafe fn run(p: &TensorProductParams, _: u64) {
        let (s, own) = lists::<E>(p, Self::STEP, Self::THREADS);
        let chunks = p.out_width.div_ceil(32);
        tasks(p, chunks, Self::THREADS, |item, column| {
            row_of_y::<E>(p, own + s.parts[0], item);
            clear::<E>(own + s.parts[2], p.rows[4] * 32);
            let mut channel = 0;
            while channel < p.width {
                warp::nounroll();
                left_rows::<E>(p, &s, own, item, channel);
                let place = Place { own, item, channel, column };
                products::<E>(p, &s, place);
                channel += 32;
            }
            store::<E>(p, own + s.parts[2], item, column);
            warp::sync(u32::MAX);
        });
    }
}

#[inline(always)]
fn clear<E: Elem>(to: u32, count: u32) {
    let mut at = gpu::thread() % 32;
    while at < count {
        warp::nounroll();
        E::st_shared(to + at * E::ACC_BYTES, E::ZERO);
        at += 32;
    }
}

/// Adds the products with the corner of every matrix to the rows of the output. Segments are sorted by matrix.
#[inline(always)]
fn products<E: Elem>(p: &TensorProductParams, s: &TensorShared, place: Place) {
    let lane = gpu::thread() % 32;
    let to = place.own + s.parts[1];
    let mut segment = 0;
    let mut held = TENSOR_NONE;
    let mut column: Column<E> = [[E::ZERO; 8]; 4];
    while segment < p.counts[0] {
        warp::nounroll();
        let [first, count, matrix, row] = copy::ld_shared_v4(copy::dynamic_shared() + segment * 16);
        if matrix != held {
            column = column_of::<E>(p, s, place, matrix, [p.width, p.out_width]);
            held = matrix;
        }
        left_side::<E>(s, place.own, first, count);
        warp::sync(u32::MAX);
        let at = place.own + s.parts[2] + ((row & !TENSOR_LAST) * 32 + lane) * E::ACC_BYTES;
        let sum = times::<E>(to, &column, E::ld_shared(at));
        E::st_shared(at, sum);
        warp::sync(u32::MAX);
        segment += 1;
    }
}

/// Sums over pairs of rows of A, one lane per channel, stored in shared memory for all lanes.
#[inline(always)]
pub fn left_side<E: Elem>(s: &TensorShared, own: u32, first: u32, count: u32) {
    let lane = gpu::thread() % 32;
    let size = 2 * E::ACC_BYTES;
    let mut at = own + s.parts[3] + first * size;
    let end = at + count * size;
    let mut sum = E::ZERO;
    while at < end {
        warp::nounroll();
        let (a, c) = super::channels::one::<E>(at);
        sum = E::fma(c, E::ld_shared(own + lane * E::ACC_BYTES + a), sum);
        at += size;
    }
    E::st_shared(own + s.parts[1] + lane * E::ACC_BYTES, sum);
}

/// Multiplies a row of 32 elements in shared memory by a column.
#[inline(always)]
fn times<E: Elem>(row: u32, column: &Column<E>, mut sum: E::Acc) -> E::Acc {
    unroll!(i < 4, {
        let low = load_four::<E>(row + i as u32 * 8 * E::ACC_BYTES);
        let high = load_four::<E>(row + (i as u32 * 8 + 4) * E::ACC_BYTES);
        unroll!(j < 4, {
            sum = E::fma(low[j], column[i][j], sum);
        });
        unroll!(j < 4, {
            sum = E::fma(high[j], column[i][j + 4], sum);
        });
    });
    sum
}

/// Loads 32 rows of this lane's column of a matrix, zeros past its extents: rows and columns of the product.
#[inline(always)]
fn column_of<E: Elem>(
    p: &TensorProductParams,
    s: &TensorShared,
    place: Place,
    matrix: u32,
    [rows, columns]: [u32; 2],
) -> Column<E> {
    let lane = gpu::thread() % 32;
    let transposed = p.flags & FLAG_TRANSPOSED != 0;
    // Transposed: rows in memory are columns of the product.
    let (down, along, ends) = if transposed {
        (place.column, place.channel, [columns, rows])
    } else {
        (place.channel, place.column, [rows, columns])
    };
    let first = matrix as u64 * ends[0] as u64 + down as u64;
    let at = place.item * p.item_strides[2] + first * p.row_strides[1] + (along + lane) as u64;
    let mut from = p.d + at * E::BYTES as u64;
    let stride = p.row_strides[1] * E::BYTES as u64;
    let inside = along + lane < ends[1];
    let mut raw = [[[0; 4]; 8]; 4];
    unroll!(i < 4, {
        unroll!(j < 8, {
            let row = i as u32 * 8 + j as u32;
            raw[i][j] = E::ld_nc::<1>(from, inside && down + row < ends[0]);
            from += stride;
        });
    });
    let mut column = [[E::ZERO; 8]; 4];
    unroll!(i < 4, {
        unroll!(j < 8, {
            column[i][j] = E::get(&raw[i][j], 0);
        });
    });
    if transposed {
        let tile = place.own + s.parts[1] + 32 * E::ACC_BYTES;
        unroll!(i < 4, {
            unroll!(j < 8, {
                let row = i as u32 * 8 + j as u32;
                let to = tile + (row * TENSOR_STRIDE + lane) * E::ACC_BYTES;
                E::st_shared(to, column[i][j]);
            });
        });
        warp::sync(u32::MAX);
        unroll!(i < 4, {
            unroll!(j < 8, {
                let row = i as u32 * 8 + j as u32;
                let from = tile + (lane * TENSOR_STRIDE + row) * E::ACC_BYTES;
                column[i][j] = E::ld_shared(from);
            });
        });
        warp::sync(u32::MAX);
    }
    column
}

/// Stores all rows of the output, this lane's channel of each.
#[inline(always)]
fn store<E: Elem>(p: &TensorProductParams, from: u32, item: u64, column: u32) {
    let lane = gpu::thread() % 32;
    let inside = column + lane < p.out_width;
    let mut row = 0;
    while row < p.rows[4] {
        warp::nounroll();
        let mut value = E::ld_shared(from + (row * 32 + lane) * E::ACC_BYTES);
        let place = item * p.item_strides[4] + row as u64 * p.row_strides[3];
        let to = p.out + (place + (column + lane) as u64) * E::BYTES as u64;
        if p.flags & FLAG_ACCUMULATE != 0 {
            value = E::add(value, E::get(&E::ld_global::<1>(to, inside), 0));
        }
        if inside {
            E::store::<1>(to, &[value]);
        }
        row += 1;
    }
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, TensorProductParams> for TensorOwnTraces {
    #[inline(always)]
    unsafe fn run(p: &TensorProductParams, _: u64) {
        let (s, own) = lists::<E>(p, Self::STEP, Self::THREADS);
        tasks(p, 1, Self::THREADS, |item, _| {
            clear::<E>(own + s.parts[0], p.rows[4]);
            let mut column = 0;
            while column < p.width {
                warp::nounroll();
                rows::<E>(p, 0, own, item, [column, p.width]);
                let mut channel = 0;
                while channel < p.out_width {
                    warp::nounroll();
                    rows::<E>(p, 3, own + s.parts[2], item, [channel, p.out_width]);
                    copy::cp_async_wait_all();
                    warp::sync(u32::MAX);
                    let place = Place { own, item, channel, column };
                    dots::<E>(p, &s, place);
                    channel += 32;
                }
                column += 32;
            }
            let to = p.out + item * p.item_strides[4] * E::BYTES as u64;
            totals::<E>(p, own + s.parts[0], to);
            warp::sync(u32::MAX);
        });
    }
}

/// Multiplies rows of F by the corner of their matrices and by rows of A. Adds the products to the sums of their
/// entries.
#[inline(always)]
fn dots<E: Elem>(p: &TensorProductParams, s: &TensorShared, place: Place) {
    let lane = gpu::thread() % 32;
    let smem = copy::dynamic_shared();
    let mut segment = 0;
    let mut held = TENSOR_NONE;
    let mut column: Column<E> = [[E::ZERO; 8]; 4];
    while segment < p.counts[0] {
        warp::nounroll();
        let [first, count, matrix, row] = copy::ld_shared_v4(smem + segment * 16);
        if matrix != held {
            column = column_of::<E>(p, s, place, matrix, [p.out_width, p.width]);
            held = matrix;
        }
        let row = place.own + s.parts[2] + (row & !TENSOR_LAST) * 32 * E::ACC_BYTES;
        let own = times::<E>(row, &column, E::ZERO);
        let mut pair = first;
        while pair < first + count {
            warp::nounroll();
            let [a, entries] = copy::ld_shared_v2(smem + s.pairs + pair * 8);
            let x = E::ld_shared(place.own + lane * E::ACC_BYTES + a);
            let sum = sum_of::<E>(E::mul(x, own), UP, 1..32);
            let mut at = entries & 0xffff;
            let end = at + (entries >> 16);
            // Only one lane adds: several entries may name the same sum.
            while at < end && lane == 0 {
                warp::nounroll();
                let code = copy::ld_shared_b32(smem + s.codes + at * 4);
                let value = E::ld_shared(smem + s.values + at * E::ACC_BYTES);
                let to = place.own + s.parts[0] + code;
                E::st_shared(to, E::fma(value, sum, E::ld_shared(to)));
                at += 1;
            }
            warp::sync(u32::MAX);
            pair += 1;
        }
        segment += 1;
    }
    warp::sync(u32::MAX);
}

#[inline(always)]
fn totals<E: Elem>(p: &TensorProductParams, from: u32, to: u64) {
    let mut row = gpu::thread() % 32;
    while row < p.rows[4] {
        warp::nounroll();
        let sum = E::ld_shared(from + row * E::ACC_BYTES);
        let to = to + row as u64 * E::BYTES as u64;
        store_or_add::<E>(to, sum, p.flags & FLAG_ACCUMULATE != 0, true);
        row += 32;
    }
}
