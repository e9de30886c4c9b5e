//! The gradient of the largest message on the CPU, in f64 and rounded once.

use einsparse_kernels::abi::LAST_OF_ROW;
use rayon::prelude::*;

use super::gathers::Matrix;
use crate::fibres::Fibres;
use crate::registry::Scalar;

/// What a gradient is made of: values of the graph, features of the sources, what the forward run made of them, its gradient.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Largest<'a, T> {
    pub(crate) values: &'a [T],
    pub(crate) x: Matrix<'a, T>,
    pub(crate) y: Matrix<'a, T>,
    pub(crate) dy: Matrix<'a, T>,
    pub(crate) features: usize,
}

/// The winner where no entry has won.
const NONE: u32 = u32::MAX;

fn slot_of(fibres: &Fibres, at: usize) -> u32 {
    fibres
        .permutation
        .as_ref()
        .map_or(at as u32, |order| order[at])
}

/// The row and the entries of each row that has some.
fn rows(fibres: &Fibres) -> impl IndexedParallelIterator<Item = (usize, std::ops::Range<usize>)> {
    let runs = fibres.runs.rows.par_iter().enumerate();
    runs.map(|(rank, &(start, len))| {
        let row = fibres
            .rows
            .as_ref()
            .map_or(rank, |rows| rows[rank] as usize);
        (row, start as usize..(start + len) as usize)
    })
}

fn row<'a, T>((data, leading): Matrix<'a, T>, row: u32, features: usize) -> &'a [T] {
    &data[row as usize * leading..][..features]
}

impl<T: Scalar> Largest<'_, T> {
    /// The slot that has won, for each target and feature: the first whose message, rounded, is what is stored.
    fn winners(&self, by_target: &Fibres) -> Vec<u32> {
        let mut first = vec![NONE; by_target.count * self.features];
        let found: Vec<(usize, Vec<u32>)> = rows(by_target)
            .map(|(target, entries)| {
                let mut own = vec![NONE; self.features];
                let y = row(self.y, target as u32, self.features);
                for at in entries {
                    let slot = slot_of(by_target, at);
                    let source = by_target.places[0][at] & (LAST_OF_ROW - 1);
                    let weight = self.values[slot as usize].to_f64();
                    let x = row(self.x, source, self.features);
                    for (f, won) in own.iter_mut().enumerate() {
                        let message = T::from_f64(weight * x[f].to_f64()).to_f64();
                        let result = y[f].to_f64();
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

    /// The gradients of X, into `dx`, and of the values, where they are wanted.
    pub(crate) fn gradient(
        &self,
        (by_target, by_source): (&Fibres, &Fibres),
        (dx, leading): (&mut [T], usize),
        dvalues: Option<&mut [T]>,
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
                    let weight = self.values[slot as usize].to_f64();
                    let dy = row(self.dy, target, self.features);
                    for (f, sum) in sums.iter_mut().enumerate() {
                        if won(target, f, slot) {
                            *sum += weight * dy[f].to_f64();
                        }
                    }
                }
                (source, sums)
            })
            .collect();
        for own in dx.chunks_mut(leading.max(1)).take(by_source.count) {
            own[..self.features].fill(T::ZERO);
        }
        for (source, sums) in sums {
            let to = dx[source * leading..].iter_mut();
            to.zip(sums).for_each(|(to, sum)| *to = T::from_f64(sum));
        }
        let Some(dvalues) = dvalues else { return };
        let weights: Vec<Vec<(u32, f64)>> = rows(by_source)
            .map(|(source, entries)| {
                let x = row(self.x, source as u32, self.features);
                let of = |at: usize| {
                    let slot = slot_of(by_source, at);
                    let target = by_source.places[0][at] & (LAST_OF_ROW - 1);
                    let dy = row(self.dy, target, self.features);
                    let terms = (0..self.features).filter(|&f| won(target, f, slot));
                    (slot, terms.map(|f| x[f].to_f64() * dy[f].to_f64()).sum())
                };
                entries.map(of).collect()
            })
            .collect();
        dvalues.fill(T::ZERO);
        for (slot, sum) in weights.into_iter().flatten() {
            dvalues[slot as usize] = T::from_f64(sum);
        }
    }
}
