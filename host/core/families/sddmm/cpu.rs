//! CPU implementation of products of dense matrices at the slots of a sparse matrix (SDDMM), in row order, on the
//! current rayon pool.

use crate::cpu::{RUN, in_runs};
use crate::parallel;
use crate::values::{Slice, SliceMut, Sum, sums_of, with_sums};
use crate::worklist::Runs;

/// Dense matrix that is read by its row index and by k, with the strides of both in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strided<'a> {
    pub values: Slice<'a>,
    pub row: usize,
    pub k: usize,
}

/// Slots of a sparse matrix of `rows` x `columns` in blocks; unstructured nonzeros are blocks of 1 x 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots<'a> {
    pub runs: &'a Runs,
    pub columns: &'a [u32],
    pub block: (usize, usize),
    pub extents: (usize, usize),
}

/// Computes `values[slot] (= | +=) alpha * mask[slot] * sum over k of x[row,k] * y[column,k]`. Sums are in the
/// accumulator of the element type, or in f64 if the output has another type, and are rounded once. Elements of edge
/// blocks outside the matrix become zero.
pub(crate) fn sampled(
    factors: [Strided<'_>; 2],
    k: usize,
    slots: Slots<'_>,
    how: (f64, Option<Slice<'_>>, bool),
    values: SliceMut<'_>,
) {
    let dtype = factors[0].values.dtype();
    with_sums!(sums_of(dtype, values.dtype()), A => {
        sampled_in::<A>(factors, k, slots, how, values);
    });
}

fn sampled_in<A: Sum>(
    [x, y]: [Strided<'_>; 2],
    k: usize,
    slots: Slots<'_>,
    (alpha, mask, accumulate): (f64, Option<Slice<'_>>, bool),
    values: SliceMut<'_>,
) {
    let (bm, bk) = slots.block;
    let alpha = A::from_f64(alpha);
    let [of_x, of_y] = [x, y].map(|factor| factor.values.widen::<A>());
    let mask = mask.map(|mask| mask.widen::<A>());
    let mut wide = values.view().widen::<A>().into_owned();
    let one = |slot: usize, row: usize, column: usize| {
        if row >= slots.extents.0 || column >= slots.extents.1 {
            return A::ZERO;
        }
        let [[mut sum]] = in_runs(0..k, RUN, |run| {
            let mut sum = A::ZERO;
            for k in run {
                sum += of_x[row * x.row + k * x.k] * of_y[column * y.row + k * y.k];
            }
            [[sum]]
        });
        sum = sum * alpha;
        if let Some(mask) = &mask {
            sum = sum * mask[slot];
        }
        if accumulate {
            sum += wide[slot];
        }
        sum
    };
    let rows = &slots.runs.rows;
    let found = parallel::collect(rows.len(), 1, &|block_row| {
        let (start, len) = rows[block_row];
        let (first, len) = (start as usize * bm * bk, len as usize * bm * bk);
        let own = (first..first + len).map(|slot| {
            let (block, inner) = (slot / (bm * bk), slot % (bm * bk));
            let row = block_row * bm + inner / bk;
            let column = slots.columns[block] as usize * bk + inner % bk;
            one(slot, row, column)
        });
        (first, own.collect::<Vec<A>>())
    });
    for (first, row) in found {
        wide[first..first + row.len()].copy_from_slice(&row);
    }
    values.narrow((1, wide.len(), wide.len()), &wide);
}
