//! Channels to channels: `Out[b,o,w] = C[a,y,o] * A[b,a,u] * Y[b,y] * D[d,u,w]`, D shared by all items. A warp has 32
//! items, a row of the output and 32 of its channels. In each segment the sum over pairs is the left operand of a
//! product with matrix d.

use super::{load_four, stage};
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

/// Sums of a lane: items `lane / 8 + 4 i`, channels `lane % 8 * 4 + j`.
pub type Sums<E> = [[<E as Elem>::Acc; 4]; 8];

impl<W: WalkInfo, E: Elem> Kernel<W, E, TensorProductParams> for TensorConnected {
    #[inline(always)]
    unsafe fn run(p: &TensorProductParams, _: u64) {
        let s = p.layout(Self::STEP, E::ACC_BYTES, Self::THREADS);
        let (number, warps) = (gpu::thread() / 32, Self::THREADS / 32);
        let first = gpu::block_x() * TENSOR_ITEMS;
        let left = p.items - first;
        let from = p.y + first as u64 * p.item_strides[1] * E::BYTES as u64;
        let y = copy::dynamic_shared() + s.own;
        let row = gpu::block_y() * warps + number;
        stage::ahead::<E>(p, Self::THREADS);
        let stride = p.item_strides[1];
        stage::tile::<E>(y, from, stride, [p.rows[1], left], [number, warps]);
        let ends = lists::<E>(p, &s, Self::STEP, Self::THREADS);
        gpu::sync_threads();
        // No thread block barrier follows, so warps without a row are done.
        if row < p.rows[4] {
            let own = y + s.parts[0] + number * s.own_bytes;
            output::<E>(p, &s, own, row, ends);
        }
    }
}

/// Copies this thread block's piece of the lists to shared memory. Returns the first segment and the end of this warp's
/// row.
#[inline(always)]
pub fn lists<E: Elem>(
    p: &TensorProductParams,
    s: &TensorShared,
    step: u32,
    threads: u32,
) -> [u32; 2] {
    let rows = rows_of_piece(step, threads);
    let [words, starts] = piece_words(p.counts, rows);
    let piece = p.lists + gpu::block_y() as u64 * words as u64 * 4;
    stage::entries::<E>(p, s, piece, [TENSOR_STRIDE * E::ACC_BYTES, 0], threads);
    stage::pairs(p, s, piece, 1, threads);
    stage::segments(p, piece, copy::dynamic_shared(), 1, threads);
    let own = piece + (starts + gpu::thread() / 32 % rows) as u64 * 4;
    [global::ld_nc_b32(own, true), global::ld_nc_b32(own + 4, true)]
}

/// Computes one row of the output for the items of a tile.
#[inline(always)]
fn output<E: Elem>(
    p: &TensorProductParams,
    s: &TensorShared,
    left: u32,
    row: u32,
    [mut segment, end]: [u32; 2],
) {
    let smem = copy::dynamic_shared();
    let coefficients = left + s.parts[3];
    let mut sums: Sums<E> = [[E::ZERO; 4]; 8];
    while segment < end {
        let [first, count, matrix, _] = copy::ld_shared_v4(smem + segment * 16);
        pairs::<E>(s, smem + s.own, coefficients, first, count);
        // A row without terms has one segment without pairs; its matrix does not exist.
        let mut channel = if count > 0 { 0 } else { p.width };
        while channel < p.width {
            // All lanes have read the previous left operand.
            warp::sync(u32::MAX);
            let tile = gpu::block_x() * TENSOR_ITEMS;
            left_side::<E>(p, s, left, coefficients, [first, count], [tile, channel]);
            warp::sync(u32::MAX);
            let (corner, extents) = ([channel, gpu::block_z() * 32], [p.width, p.out_width]);
            multiply::<E>(p, left, matrix, corner, extents, &mut sums);
            channel += 32;
        }
        segment += 1;
        warp::sync(u32::MAX);
    }
    store::<E>(p, row, &sums);
}

/// Computes the coefficients of pairs, one lane per item; `y`: the tile of Y.
#[inline(always)]
pub fn pairs<E: Elem>(s: &TensorShared, y: u32, to: u32, first: u32, count: u32) {
    let lane = gpu::thread() % 32;
    let smem = copy::dynamic_shared();
    let y = y + lane * E::ACC_BYTES;
    let mut pair = 0;
    while pair < count {
        warp::nounroll();
        let [_, entries] = copy::ld_shared_v2(smem + s.pairs + (first + pair) * 8);
        let mut sum = E::ZERO;
        let mut at = entries & 0xffff;
        let end = at + (entries >> 16);
        while at < end {
            warp::nounroll();
            let code = copy::ld_shared_b32(smem + s.codes + at * 4);
            let value = E::ld_shared(smem + s.values + at * E::ACC_BYTES);
            sum = E::fma(value, E::ld_shared(y + code), sum);
            at += 1;
        }
        E::st_shared(to + (pair * 32 + lane) * E::ACC_BYTES, sum);
        pair += 1;
    }
}

/// Computes the left operand, the sums over pairs: items from `tile` on by 32 channels of A, one lane per channel.
#[inline(always)]
pub fn left_side<E: Elem>(
    p: &TensorProductParams,
    s: &TensorShared,
    to: u32,
    coefficients: u32,
    [first, count]: [u32; 2],
    [tile, channel]: [u32; 2],
) {
    let lane = gpu::thread() % 32;
    let inside = channel + lane < p.width;
    let list = copy::dynamic_shared() + s.pairs;
    let stride = p.item_strides[0] * E::BYTES as u64;
    let from = p.a + tile as u64 * stride + (channel + lane) as u64 * E::BYTES as u64;
    let left = p.items - tile;
    let mut sums = [[E::ZERO; 8]; 4];
    let mut pair = 0;
    while pair < count {
        warp::nounroll();
        let a = copy::ld_shared_b32(list + (first + pair) * 8);
        let mut from = from + a as u64 * p.row_strides[0] * E::BYTES as u64;
        // All 32 loads are in flight at once: a warp has little other work while it waits.
        let mut raw = [[[0; 4]; 8]; 4];
        unroll!(i < 4, {
            unroll!(j < 8, {
                raw[i][j] = E::ld_nc::<1>(from, inside && ((i * 8 + j) as u32) < left);
                from += stride;
            });
        });
        let at = coefficients + pair * 32 * E::ACC_BYTES;
        unroll!(i < 4, {
            let low = load_four::<E>(at + i as u32 * 8 * E::ACC_BYTES);
            let high = load_four::<E>(at + (i as u32 * 8 + 4) * E::ACC_BYTES);
            unroll!(j < 4, {
                sums[i][j] = E::fma(low[j], E::get(&raw[i][j], 0), sums[i][j]);
                sums[i][j + 4] = E::fma(high[j], E::get(&raw[i][j + 4], 0), sums[i][j + 4]);
            });
        });
        pair += 1;
    }
    unroll!(i < 4, {
        unroll!(j < 8, {
            let place = (i * 8 + j) as u32 * TENSOR_LEFT + lane;
            E::st_shared(to + place * E::ACC_BYTES, sums[i][j]);
        });
    });
}

/// Adds the left operand times 32 rows and columns of a matrix, from a corner on; `extents`: rows and columns of the
/// matrix.
#[inline(always)]
pub fn multiply<E: Elem>(
    p: &TensorProductParams,
    left: u32,
    matrix: u32,
    [channel, column]: [u32; 2],
    [rows, columns]: [u32; 2],
    sums: &mut Sums<E>,
) {
    let lane = gpu::thread() % 32;
    let left = left + lane / 8 * TENSOR_LEFT * E::ACC_BYTES;
    let column = column + lane % 8 * 4;
    let from = p.d + matrix as u64 * p.item_strides[2] * E::BYTES as u64;
    let ends = [rows.min(channel + 32), columns];
    let mut next = corner_of::<E>(p, from, [channel, column], ends);
    let mut step = 0;
    while step < 32 && channel + step < rows {
        warp::nounroll();
        let right = next;
        // Prefetches the next rows during the multiplication.
        next = corner_of::<E>(p, from, [channel + step + 4, column], ends);
        unroll!(i < 8, {
            let x = load_four::<E>(left + (i as u32 * 4 * TENSOR_LEFT + step) * E::ACC_BYTES);
            unroll!(k < 4, {
                unroll!(j < 4, {
                    sums[i][j] = E::fma(x[k], right[k][j], sums[i][j]);
                });
            });
        });
        step += 4;
    }
}

/// Loads four rows and columns of a matrix at `from`, zeros past the ends.
#[inline(always)]
fn corner_of<E: Elem>(
    p: &TensorProductParams,
    from: u64,
    [row, column]: [u32; 2],
    [rows, columns]: [u32; 2],
) -> [[E::Acc; 4]; 4] {
    // Transposed: rows in memory are columns of the product.
    let transposed = p.flags & FLAG_TRANSPOSED != 0;
    let (down, along, ends) =
        if transposed { (column, row, [columns, rows]) } else { (row, column, [rows, columns]) };
    let mut found = [[E::ZERO; 4]; 4];
    unroll!(i < 4, {
        let at = down + i as u32;
        let from = from + (at as u64 * p.row_strides[1] + along as u64) * E::BYTES as u64;
        let inside = if at < ends[0] { ends[1] - along.min(ends[1]) } else { 0 };
        found[i] = four::<E>(from, inside, p.flags & FLAG_WIDE != 0);
    });
    if transposed {
        let r = found;
        unroll!(i < 4, { found[i] = [r[0][i], r[1][i], r[2][i], r[3][i]] });
    }
    found
}

/// Loads four neighboring elements, zeros from `inside` on.
#[inline(always)]
pub fn four<E: Elem>(from: u64, inside: u32, wide: bool) -> [E::Acc; 4] {
    if wide && E::BYTES <= 4 {
        // Widths are multiples of four.
        let raw = E::ld_nc::<4>(from, inside > 0);
        let get = |i: usize| E::get(&raw, i);
        return [get(0), get(1), get(2), get(3)];
    }
    let mut out = [E::ZERO; 4];
    unroll!(i < 4, {
        let at = from + i as u64 * E::BYTES as u64;
        out[i] = E::get(&E::ld_nc::<1>(at, (i as u32) < inside), 0);
    });
    out
}

/// Stores a row of the output for the items of the tile.
#[inline(always)]
fn store<E: Elem>(p: &TensorProductParams, row: u32, sums: &Sums<E>) {
    let lane = gpu::thread() % 32;
    let column = gpu::block_z() * 32 + lane % 8 * 4;
    let first = gpu::block_x() * TENSOR_ITEMS + lane / 8;
    let inside = p.out_width - column.min(p.out_width);
    unroll!(i < 8, {
        let item = first + i as u32 * 4;
        if item < p.items {
            let at =
                item as u64 * p.item_strides[4] + row as u64 * p.row_strides[3] + column as u64;
            let to = p.out + at * E::BYTES as u64;
            let mut values = sums[i];
            if p.flags & FLAG_ACCUMULATE != 0 {
                unroll!(j < 4, {
                    let from = to + j as u64 * E::BYTES as u64;
                    let old = E::ld_global::<1>(from, (j as u32) < inside);
                    values[j] = E::add(values[j], E::get(&old, 0));
                });
            }
            if E::BYTES <= 4 && p.flags & FLAG_WIDE != 0 {
                if inside > 0 {
                    E::store::<4>(to, &values);
                }
            } else {
                unroll!(j < 4, {
                    if (j as u32) < inside {
                        E::store::<1>(to + j as u64 * E::BYTES as u64, &[values[j]]);
                    }
                });
            }
        }
    });
}
