//! CPU implementation of rows gathered for the nonzeros of a sparse tensor, computed in f64 and rounded once. One
//! thread computes each output row.

use crate::families::tensor::fibres::Fibres;
use crate::parallel;
use crate::values::{Slice, SliceMut};

use einsparse_kernels::families::LAST_OF_ROW;

/// Dense matrix in host memory: elements and the row stride.
pub(crate) type Matrix<'a> = (Slice<'a>, usize);

/// Computes the output row of each stored row of `fibres`: the sum, or with `max` the maximum, of the value times the
/// elementwise product of the factor rows. Rows without nonzeros become zero.
pub(crate) fn gathers(
    fibres: &Fibres,
    values: Slice<'_>,
    factors: &[Matrix<'_>],
    (out, leading, n): (SliceMut<'_>, usize, usize),
    max: bool,
) {
    if n == 0 || fibres.count == 0 {
        return;
    }
    let ranks: Vec<u32> = match &fibres.rows {
        Some(rows) => rows.clone(),
        None => (0..fibres.runs.rows.len() as u32).collect(),
    };
    let values = values.widen::<f64>();
    let factors: Vec<_> =
        factors.iter().map(|(data, leading)| (data.widen::<f64>(), *leading)).collect();
    let mut wide = vec![0.0; out.len().min(fibres.count * leading)];
    parallel::chunks(&mut wide, leading, &|row, sums| {
        let rank = ranks.partition_point(|&own| (own as usize) < row);
        let (start, len) = match ranks.get(rank) {
            Some(&own) if own as usize == row => fibres.runs.rows[rank],
            _ => (0, 0),
        };
        let sums = &mut sums[..n];
        if max && len > 0 {
            sums.fill(f64::NEG_INFINITY);
        }
        for at in start as usize..(start + len) as usize {
            let slot = fibres.permutation.as_ref().map_or(at, |order| order[at] as usize);
            let rows = fibres.places.iter().zip(&factors).map(|(places, (data, leading))| {
                &data[(places[at] & (LAST_OF_ROW - 1)) as usize * leading..][..n]
            });
            let rows: Vec<&[f64]> = rows.collect();
            for (j, sum) in sums.iter_mut().enumerate() {
                let product = rows.iter().fold(values[slot], |x, row| x * row[j]);
                *sum = match max {
                    false => *sum + product,
                    true if sum.is_nan() || *sum >= product => *sum,
                    true => product,
                };
            }
        }
    });
    out.narrow((fibres.count, n, leading), &wide);
}
