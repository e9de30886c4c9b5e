//! CPU implementation of decode attention (one query per head, with a cache), accumulated in f64 and rounded once. One
//! thread computes each query.

use super::{HostHeads, softmax_of};
use crate::families::attention::DecodeExtents;
use crate::tensor::AnyTensor;

/// Operands and extents. Each length is at most the capacity.
pub(crate) struct HostDecode<'a> {
    pub q: HostHeads<'a>,
    pub k: HostHeads<'a>,
    pub v: HostHeads<'a>,
    pub lengths: Vec<usize>,
    pub extents: DecodeExtents,
    pub scale: f64,
}

impl HostDecode<'_> {
    /// Computes the output of row `row` of the queries.
    fn query(&self, row: usize, sums: &mut [f64]) {
        let DecodeExtents { key_heads, group, capacity, d, .. } = self.extents;
        let pair = row / group;
        let keys = pair * capacity..pair * capacity + self.lengths[pair / key_heads];
        let q = self.q.row(row, d);
        let score = |key: usize| {
            let dot: f64 = q.iter().zip(self.k.row(key, d)).map(|(q, k)| q * k).sum();
            dot * self.scale
        };
        let (weights, _, sum) = softmax_of(keys.clone().map(score).collect());
        for (key, weight) in keys.zip(&weights) {
            for (sum, v) in sums.iter_mut().zip(self.v.row(key, d)) {
                *sum += weight * v;
            }
        }
        for own in sums {
            *own = if sum == 0.0 { 0.0 } else { *own / sum };
        }
    }

    pub(crate) fn run(&self, out: &mut AnyTensor) {
        let (rows, width) = (self.extents.queries(), self.extents.d);
        out.store_rows(rows, width, &|row, sums: &mut [f64]| self.query(row, sums));
    }
}
