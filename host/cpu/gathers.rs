//! Rows gathered for the entries of a sparse tensor on the CPU, in f64 and rounded once. Each output row is the work of one thread.

use rayon::prelude::*;

use crate::fibres::Fibres;
use crate::registry::Scalar;

use einsparse_kernels::abi::LAST_OF_ROW;

/// A dense matrix in memory: elements and the distance of its rows.
pub(crate) type Matrix<'a, T> = (&'a [T], usize);

/// Every stored row of `fibres` into a row of `out`: the sum, or with `max` the largest, of value x rows of the factors, elementwise.
/// Rows without entries become zero.
pub(crate) fn gathers<T: Scalar>(
    fibres: &Fibres,
    values: &[T],
    factors: &[Matrix<'_, T>],
    (out, leading, n): (&mut [T], usize, usize),
    max: bool,
) {
    if n == 0 || fibres.count == 0 {
        return;
    }
    let ranks: Vec<u32> = match &fibres.rows {
        Some(rows) => rows.clone(),
        None => (0..fibres.runs.rows.len() as u32).collect(),
    };
    let written = out
        .par_chunks_mut(leading.max(1))
        .take(fibres.count)
        .enumerate();
    written.for_each(|(row, out)| {
        let rank = ranks.partition_point(|&own| (own as usize) < row);
        let (start, len) = match ranks.get(rank) {
            Some(&own) if own as usize == row => fibres.runs.rows[rank],
            _ => (0, 0),
        };
        let first = if max && len > 0 {
            f64::NEG_INFINITY
        } else {
            0.0
        };
        let mut sums = vec![first; n];
        for at in start as usize..(start + len) as usize {
            let slot = fibres
                .permutation
                .as_ref()
                .map_or(at, |order| order[at] as usize);
            let rows = fibres
                .places
                .iter()
                .zip(factors)
                .map(|(places, (data, leading))| {
                    &data[(places[at] & (LAST_OF_ROW - 1)) as usize * leading..][..n]
                });
            let rows: Vec<&[T]> = rows.collect();
            let value = values[slot].to_f64();
            for (j, sum) in sums.iter_mut().enumerate() {
                let product = rows.iter().fold(value, |x, row| x * row[j].to_f64());
                *sum = match max {
                    false => *sum + product,
                    true if sum.is_nan() || *sum >= product => *sum,
                    true => product,
                };
            }
        }
        for (to, sum) in out.iter_mut().zip(sums) {
            *to = T::from_f64(sum);
        }
    });
}
