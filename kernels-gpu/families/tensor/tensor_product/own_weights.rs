//! Gradient of a matrix for each item: `Out[b,o,u,w] = C[a,y,f,o] * A[b,a,u] * Y[b,y] * F[b,f,w]`. A warp has an item
//! and 32 columns. A lane accumulates 32 elements of its column, products of left operands and rows of F.

use super::load_four;
use super::own::{left_rows, left_side, lists, row_of_y, rows, tasks};
use crate::device::epilogue::store_or_add;
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

impl<W: WalkInfo, E: Elem> Kernel<W, E, TensorProductParams> for TensorOwnWeights {
    #[inline(always)]
    unsafe fn run(p: &TensorProductParams, _: u64) {
        let (s, own) = lists::<E>(p, Self::STEP, Self::THREADS);
        let chunks = p.out_width.div_ceil(32);
        tasks(p, chunks, Self::THREADS, |item, column| {
            row_of_y::<E>(p, own + s.parts[0], item);
            rows::<E>(p, 3, own + s.parts[2], item, [column, p.out_width]);
            let mut channel = 0;
            while channel < p.width {
                warp::nounroll();
                left_rows::<E>(p, &s, own, item, channel);
                let at = item * p.item_strides[4] + channel as u64 * p.row_strides[3];
                let to = p.out + (at + (column + gpu::thread() % 32) as u64) * E::BYTES as u64;
                matrices::<E>(p, &s, own, to, [channel, column]);
                channel += 32;
            }
        });
    }
}

/// Computes 32 rows and columns of every matrix, from a corner on; `to`: address of this lane's column of the first
/// matrix.
#[inline(always)]
fn matrices<E: Elem>(
    p: &TensorProductParams,
    s: &TensorShared,
    own: u32,
    to: u64,
    [channel, column]: [u32; 2],
) {
    let lane = gpu::thread() % 32;
    let left = own + s.parts[1];
    let mut sums = [[E::ZERO; 8]; 4];
    let mut segment = 0;
    while segment < p.counts[0] {
        warp::nounroll();
        let [first, count, right, row] = copy::ld_shared_v4(copy::dynamic_shared() + segment * 16);
        left_side::<E>(s, own, first, count);
        warp::sync(u32::MAX);
        // If a matrix is without terms, its segment does not name a row of F.
        if count > 0 {
            let from = own + s.parts[2] + (right * 32 + lane) * E::ACC_BYTES;
            let right = E::ld_shared(from);
            unroll!(i < 4, {
                let low = load_four::<E>(left + i as u32 * 8 * E::ACC_BYTES);
                let high = load_four::<E>(left + (i as u32 * 8 + 4) * E::ACC_BYTES);
                unroll!(j < 4, {
                    sums[i][j] = E::fma(low[j], right, sums[i][j]);
                    sums[i][j + 4] = E::fma(high[j], right, sums[i][j + 4]);
                });
            });
        }
        warp::sync(u32::MAX);
        if row & TENSOR_LAST != 0 {
            let matrix = (row & !TENSOR_LAST) as u64 * p.width as u64;
            let to = to + matrix * p.row_strides[3] * E::BYTES as u64;
            let left = p.width - channel;
            store::<E>(p, to, if column + lane < p.out_width { left } else { 0 }, &sums);
            sums = [[E::ZERO; 8]; 4];
        }
        segment += 1;
    }
}

/// Stores 32 elements of a column; only the first `inside` exist.
#[inline(always)]
fn store<E: Elem>(p: &TensorProductParams, to: u64, inside: u32, sums: &[[E::Acc; 8]; 4]) {
    unroll!(i < 4, {
        unroll!(j < 8, {
            let row = i as u32 * 8 + j as u32;
            let to = to + row as u64 * p.row_strides[3] * E::BYTES as u64;
            store_or_add::<E>(to, sums[i][j], p.flags & FLAG_ACCUMULATE != 0, row < inside);
        });
    });
}
