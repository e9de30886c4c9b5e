//! A matrix for each item. A warp has an item and 32 columns; a lane has 32 elements of a matrix column in registers.
//! `own_connected`: `Out[b,o,w] = C[a,y,o] * A[b,a,u] * Y[b,y] * D[b,d,u,w]`. `own_traces`, sums over both channels:
//! `Out[b,o] = C[a,o,..] * A[b,a,u] * F[b,f,w] * D[b,d,u,w]`. Both read a matrix once and multiply it by every row that
//! uses it. `own_weights`, the gradient of the matrix: `Out[b,o,u,w] = C[a,y,f,o] * A[b,a,u] * Y[b,y] * F[b,f,w]`.
//! Lists, rows of the item and its other sums are in shared memory. Coefficients, and other warps, overlap the loads.

use super::rows::{coefficients, one};
use super::{clear, load_eight, put, stage};
use crate::device::lanes::{UP, sum_of};
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

/// A lane's part of a column: element `8 i + j` is at `[i][j]`.
type Column<E> = [[<E as Elem>::Acc; 8]; 4];

/// The work of a warp: an item, and the corner of 32 rows and 32 columns of its matrices.
#[derive(Clone, Copy)]
struct Place<T> {
    own: Shared<T>,
    item: u64,
    channel: u32,
    column: u32,
}

#[inline(always)]
pub fn run<E: Elem, T: Tile>(p: &TensorProductParams) {
    let (connected, traces) =
        (T::STEP == STEP_TENSOR_OWN_CONNECTED, T::STEP == STEP_TENSOR_OWN_TRACES);
    // Columns are channels of the output or of F; of A if the sum is over both.
    let ([rows, columns], chunks) = if traces {
        ([p.out_width, p.width], 1)
    } else {
        ([p.width, p.out_width], p.out_width.div_ceil(32))
    };
    stage::tasks::<E, T>(p, chunks, |s, own, item, first| {
        let [sums, right] = [s.parts[0], s.parts[2]].map(|part| own.bytes(part));
        if traces {
            clear::<E>(sums, p.rows[4]);
        } else {
            stage::row_of_y::<E>(p, sums, item);
        }
        if connected {
            clear::<E>(right, p.rows[4] * 32);
        }
        let mut column = first;
        while if traces { column < columns } else { column == first } {
            if traces {
                stage::rows::<E>(p, 0, own, item, [column, columns]);
            } else if !connected {
                stage::rows::<E>(p, 3, right, item, [column, columns]);
            }
            let mut channel = 0;
            while channel < rows {
                warp::nounroll();
                let (which, to) = if traces { (3, right) } else { (0, own) };
                stage::rows::<E>(p, which, to, item, [channel, rows]);
                if !traces && channel == 0 {
                    warp::sync(u32::MAX);
                    coefficients::<E>(p, s, own);
                }
                copy::cp_async_wait_all();
                warp::sync(u32::MAX);
                let place = Place { own, item, channel, column };
                segments::<E, T>(p, s, place, [rows, columns]);
                channel += 32;
            }
            column += 32;
        }
        let lane = gpu::thread() % 32;
        let place = item * p.item_strides[4];
        if traces {
            let mut row = lane;
            while row < p.rows[4] {
                warp::nounroll();
                let sum = sums.at(row).ld();
                put::<E>(p, p.out().at(place + row as u64), sum, true);
                row += 32;
            }
        } else if connected {
            let mut row = 0;
            while row < p.rows[4] {
                warp::nounroll();
                let sum = right.at(row * 32 + lane).ld();
                let at = place + row as u64 * p.row_strides[3] + (first + lane) as u64;
                put::<E>(p, p.out().at(at), sum, first + lane < p.out_width);
                row += 1;
            }
        }
    });
}

/// Adds the products with the corner of every matrix to the sums. The segments of a matrix are consecutive. `extents`:
/// rows and columns of the matrices.
#[inline(always)]
fn segments<E: Elem, T: Tile>(
    p: &TensorProductParams,
    s: &TensorShared,
    place: Place<E::Acc>,
    extents: [u32; 2],
) {
    let lane = gpu::thread() % 32;
    let (weights, traces) = (T::STEP == STEP_TENSOR_OWN_WEIGHTS, T::STEP == STEP_TENSOR_OWN_TRACES);
    let [left, rows] = [s.parts[1], s.parts[2]].map(|part| place.own.bytes(part));
    let mut segment = 0;
    let mut held = TENSOR_NONE;
    let mut column: Column<E> = [[E::ZERO; 8]; 4];
    while segment < p.counts[0] {
        warp::nounroll();
        let [first, count, right, row] = s.segments().at(segment).ld();
        if !traces {
            left_side::<E>(s, place.own, first, count);
        }
        if !weights && right != held {
            held = right;
            column = column_of::<E>(p, s, place, right, extents);
        }
        // The left operand is complete. Loads of a matrix overlap the wait.
        warp::sync(u32::MAX);
        if traces {
            let own = times::<E>(rows.at((row & !TENSOR_LAST) * 32), &column, E::ZERO);
            let mut pair = first;
            while pair < first + count {
                warp::nounroll();
                add_pair::<E>(s, place.own, pair, own);
                pair += 1;
            }
        } else if weights {
            // If a matrix is without terms, its segment does not name a row of F.
            if count > 0 {
                let right = rows.at(right * 32 + lane).ld();
                unroll!(i < 4, {
                    let left = load_eight::<E>(left.at(i as u32 * 8));
                    unroll!(j < 8, { column[i][j] = E::fma(left[j], right, column[i][j]) });
                });
            }
            if row & TENSOR_LAST != 0 {
                store::<E>(p, place, row & !TENSOR_LAST, &column);
                column = [[E::ZERO; 8]; 4];
            }
        } else {
            let at = rows.at((row & !TENSOR_LAST) * 32 + lane);
            at.st(times::<E>(left, &column, at.ld()));
        }
        warp::sync(u32::MAX);
        segment += 1;
    }
}

/// Sums over pairs of rows of A, one lane per channel, stored in shared memory for all lanes.
#[inline(always)]
fn left_side<E: Elem>(s: &TensorShared, own: Shared<E::Acc>, first: u32, count: u32) {
    let lane = gpu::thread() % 32;
    let size = 2 * E::ACC_BYTES;
    let mut at = own.bytes(s.parts[3]).bytes(first * size);
    let end = at.bytes(count * size).address();
    let mut sum = E::ZERO;
    while at.address() < end {
        warp::nounroll();
        let (a, c) = one::<E>(at);
        sum = E::fma(c, own.at(lane).bytes(a).ld(), sum);
        at = at.bytes(size);
    }
    own.bytes(s.parts[1]).at(lane).st(sum);
}

/// Multiplies a row of 32 elements in shared memory by a column.
#[inline(always)]
fn times<E: Elem>(row: Shared<E::Acc>, column: &Column<E>, mut sum: E::Acc) -> E::Acc {
    unroll!(i < 4, {
        let left = load_eight::<E>(row.at(i as u32 * 8));
        unroll!(j < 8, { sum = E::fma(left[j], column[i][j], sum) });
    });
    sum
}

/// Loads 32 rows of this lane's column of a matrix, zeros past its extents: rows and columns of the product.
#[inline(always)]
fn column_of<E: Elem>(
    p: &TensorProductParams,
    s: &TensorShared,
    place: Place<E::Acc>,
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
    let mut from = p.d::<E>().at(at);
    let stride = p.row_strides[1] * E::BYTES as u64;
    let inside = along + lane < ends[1];
    let mut column = [[E::ZERO; 8]; 4];
    unroll!(i < 4, {
        unroll!(j < 8, {
            let row = i as u32 * 8 + j as u32;
            let raw = from.ld_raw::<1>(inside && down + row < ends[0]);
            column[i][j] = E::get(&raw, 0);
            from = from.bytes(stride);
        });
    });
    if transposed {
        let tile = place.own.bytes(s.parts[1]).at(32);
        unroll!(i < 4, {
            unroll!(j < 8, {
                let row = i as u32 * 8 + j as u32;
                tile.at(row * TENSOR_STRIDE + lane).st(column[i][j]);
            });
        });
        warp::sync(u32::MAX);
        unroll!(i < 4, {
            unroll!(j < 8, {
                let row = i as u32 * 8 + j as u32;
                column[i][j] = tile.at(lane * TENSOR_STRIDE + row).ld();
            });
        });
        warp::sync(u32::MAX);
    }
    column
}

/// Multiplies the lanes' products of a matrix by a pair's row of A. Adds the sum over lanes to the sums of its entries.
#[inline(always)]
fn add_pair<E: Elem>(s: &TensorShared, own: Shared<E::Acc>, pair: u32, product: E::Acc) {
    let lane = gpu::thread() % 32;
    let [a, entries] = s.pairs::<[u32; 2]>().at(pair).ld();
    let x = own.at(lane).bytes(a).ld();
    let sum = sum_of::<E>(E::mul(x, product), UP, 1..32);
    let mut at = entries & 0xffff;
    let end = at + (entries >> 16);
    // Only one lane adds: several entries may name the same sum.
    while at < end && lane == 0 {
        warp::nounroll();
        let to = own.bytes(s.parts[0]).bytes(s.codes().at(at).ld());
        let value = s.values::<E>().at(at).ld();
        to.st(E::fma(value, sum, to.ld()));
        at += 1;
    }
}

/// Stores 32 elements of a column of a matrix of the output.
#[inline(always)]
fn store<E: Elem>(p: &TensorProductParams, place: Place<E::Acc>, matrix: u32, sums: &Column<E>) {
    let column = place.column + gpu::thread() % 32;
    let first = matrix as u64 * p.width as u64 + place.channel as u64;
    let at = place.item * p.item_strides[4] + first * p.row_strides[3] + column as u64;
    let to = p.out::<E>().at(at);
    let inside = if column < p.out_width { p.width - place.channel } else { 0 };
    unroll!(i < 4, {
        unroll!(j < 8, {
            let row = i as u32 * 8 + j as u32;
            put::<E>(p, to.at(row as u64 * p.row_strides[3]), sums[i][j], row < inside);
        });
    });
}
