//! Products of dense matrices at the slots of a sparse matrix (SDDMM), in row order, on the current rayon pool.

use einsparse_formats::{Accumulator, Element};
use rayon::prelude::*;

use crate::worklist::Runs;

/// A dense matrix read by its own row index and by k.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strided<'a, T> {
    pub values: &'a [T],
    pub row: usize,
    pub k: usize,
}

impl<T> Strided<'_, T> {
    /// The same of other values.
    pub(crate) fn with<'b, U>(&self, values: &'b [U]) -> Strided<'b, U> {
        Strided {
            values,
            row: self.row,
            k: self.k,
        }
    }
}

/// Slots of a sparse matrix of `rows` x `columns` in blocks; entries are blocks of 1 x 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots<'a> {
    pub runs: &'a Runs,
    pub columns: &'a [u32],
    pub block: (usize, usize),
    pub extents: (usize, usize),
}

/// `values[slot] (= | +=) alpha * mask[slot] * sum over k of x[row,k] * y[column,k]`, summed in the accumulator of the
/// element type and rounded once. What edge blocks hold outside the matrix becomes zero.
pub(crate) fn sampled<T: Element>(
    (x, y): (Strided<'_, T>, Strided<'_, T>),
    k: usize,
    slots: Slots<'_>,
    (alpha, mask, accumulate): (f64, Option<&[T]>, bool),
    values: &mut [T],
) {
    let (bm, bk) = slots.block;
    let alpha = T::Acc::from_f64(alpha);
    let one = |slot: usize, old: T, row: usize, column: usize| {
        if row >= slots.extents.0 || column >= slots.extents.1 {
            return T::ZERO;
        }
        let mut sum = T::Acc::ZERO;
        for k in 0..k {
            let factor = y.values[column * y.row + k * y.k].to_acc();
            sum += x.values[row * x.row + k * x.k].to_acc() * factor;
        }
        sum = sum * alpha;
        if let Some(mask) = mask {
            sum = sum * mask[slot].to_acc();
        }
        if accumulate {
            sum += old.to_acc();
        }
        T::from_acc(sum)
    };
    let found: Vec<(usize, Vec<T>)> = slots
        .runs
        .rows
        .par_iter()
        .enumerate()
        .map(|(block_row, &(start, len))| {
            let (first, len) = (start as usize * bm * bk, len as usize * bm * bk);
            let own = (first..first + len).map(|slot| {
                let (block, inner) = (slot / (bm * bk), slot % (bm * bk));
                let row = block_row * bm + inner / bk;
                let column = slots.columns[block] as usize * bk + inner % bk;
                one(slot, values[slot], row, column)
            });
            (first, own.collect())
        })
        .collect();
    for (first, row) in found {
        values[first..first + row.len()].copy_from_slice(&row);
    }
}
