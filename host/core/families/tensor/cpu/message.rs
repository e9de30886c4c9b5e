//! CPU implementation of the gradient of the max message, computed in f64 and rounded once.

use std::borrow::Cow;

use einsparse_kernels::families::LAST_OF_ROW;
use rayon::prelude::*;

use super::gathers::Matrix;
use crate::families::tensor::fibres::Fibres;
use crate::values::{Slice, SliceMut, rounding};

/// Inputs of the gradient: values of the graph, features of the sources, result of the forward pass, and its gradient.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Largest<'a> {
    pub(crate) values: Slice<'a>,
    pub(crate) x: Matrix<'a>,
    pub(crate) y: Matrix<'a>,
    pub(crate) dy: Matrix<'a>,
    pub(crate) features: usize,
}

/// Marks a result without a winning nonzero.
const NONE: u32 = u32::MAX;

fn slot_of(fibres: &Fibres, at: usize) -> u32 {
    fibres.permutation.as_ref().map_or(at as u32, |order| order[at])
}

/// Iterates over the rows that have nonzeros, with the nonzeros of each.
fn rows(fibres: &Fibres) -> impl IndexedParallelIterator<Item = (usize, std::ops::Range<usize>)> {
    let runs = fibres.runs.rows.par_iter().enumerate();
    runs.map(|(rank, &(start, len))| {
        let row = fibres.rows.as_ref().map_or(rank, |rows| rows[rank] as usize);
        (row, start as usize..(start + len) as usize)
    })
}

impl Largest<'_> {
    /// Computes the gradient of X into `dx`, and that of the values if requested.
    pub(crate) fn gradient(
        &self,
        (by_target, by_source): (&Fibres, &Fibres),
        (dx, leading): (SliceMut<'_>, usize),
        dvalues: Option<SliceMut<'_>>,
    ) {
        let wide = Wide {
            values: self.values.widen(),
            matrices: [self.x, self.y, self.dy].map(|(data, leading)| (data.widen(), leading)),
            features: self.features,
            round: rounding(self.values.dtype()),
        };
        wide.gradient((by_target, by_source), (dx, leading), dvalues);
    }
}

/// Inputs of the gradient in f64.
struct Wide<'a> {
    values: Cow<'a, [f64]>,
    /// The matrices X, Y and dY.
    matrices: [(Cow<'a, [f64]>, usize); 3],
    features: usize,
    round: fn(f64) -> f64,
}

impl Wide<'_> {
    fn row(&self, which: usize, row: u32) -> &[f64] {
        let (data, leading) = &self.matrices[which];
        &data[row as usize * leading..][..self.features]
    }

    /// Returns the winning slot of each target and feature: the first whose rounded message equals the stored result.
    fn winners(&self, by_target: &Fibres) -> Vec<u32> {
        let mut first = vec![NONE; by_target.count * self.features];
        let found: Vec<(usize, Vec<u32>)> = rows(by_target)
            .map(|(target, entries)| {
                let mut own = vec![NONE; self.features];
                let y = self.row(1, target as u32);
                for at in entries {
                    let slot = slot_of(by_target, at);
                    let source = by_target.places[0][at] & (LAST_OF_ROW - 1);
                    let weight = self.values[slot as usize];
                    let x = self.row(0, source);
                    for (f, won) in own.iter_mut().enumerate() {
                        let message = (self.round)(weight * x[f]);
                        let result = y[f];
                        let same = message == result || (message.is_nan() && result.is_nan());
                        if *won == NONE && same {
                            *won = slot;
                        }
                    }
                }
                (target, own)
            })
            .collect();
        for (target, own) in found {
            first[target * self.features..][..self.features].copy_from_slice(&own);
        }
        first
    }

    fn gradient(
        &self,
        (by_target, by_source): (&Fibres, &Fibres),
        (dx, leading): (SliceMut<'_>, usize),
        dvalues: Option<SliceMut<'_>>,
    ) {
        let first = self.winners(by_target);
        let won =
            |target: u32, f: usize, slot: u32| first[target as usize * self.features + f] == slot;
        let sums: Vec<(usize, Vec<f64>)> = rows(by_source)
            .map(|(source, entries)| {
                let mut sums = vec![0.0; self.features];
                for at in entries {
                    let slot = slot_of(by_source, at);
                    let target = by_source.places[0][at] & (LAST_OF_ROW - 1);
                    let weight = self.values[slot as usize];
                    let dy = self.row(2, target);
                    for (f, sum) in sums.iter_mut().enumerate() {
                        if won(target, f, slot) {
                            *sum += weight * dy[f];
                        }
                    }
                }
                (source, sums)
            })
            .collect();
        let mut wide = vec![0.0; by_source.count * leading];
        for (source, sums) in sums {
            wide[source * leading..][..sums.len()].copy_from_slice(&sums);
        }
        dx.narrow((by_source.count, self.features, leading), &wide);
        let Some(dvalues) = dvalues else { return };
        let weights: Vec<Vec<(u32, f64)>> = rows(by_source)
            .map(|(source, entries)| {
                let x = self.row(0, source as u32);
                let of = |at: usize| {
                    let slot = slot_of(by_source, at);
                    let target = by_source.places[0][at] & (LAST_OF_ROW - 1);
                    let dy = self.row(2, target);
                    let terms = (0..self.features).filter(|&f| won(target, f, slot));
                    // The sum starts at 0, as on a GPU, because an empty sum must not be -0.
                    (slot, terms.fold(0.0, |sum, f| sum + x[f] * dy[f]))
                };
                entries.map(of).collect()
            })
            .collect();
        let mut wide = vec![0.0; dvalues.len()];
        for (slot, sum) in weights.into_iter().flatten() {
            wide[slot as usize] = sum;
        }
        dvalues.narrow((1, self.values.len(), wide.len()), &wide);
    }
}
