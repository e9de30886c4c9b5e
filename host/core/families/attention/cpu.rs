//! CPU implementation of attention at the entries of a mask, accumulated in f64 and rounded once. One thread computes
//! each query of each head.

mod decode;
mod gradient;

use std::borrow::Cow;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::families::attention::AttentionExtents;
use crate::families::attention::queries::Seen;
use crate::tensor::AnyTensor;
pub(crate) use decode::HostDecode;

/// Matrices of all heads, `[heads, rows, d]`, with row stride `leading` in elements.
pub struct HostHeads<'a> {
    pub values: Cow<'a, [f64]>,
    pub leading: usize,
}

impl<'a> HostHeads<'a> {
    /// Widens a tensor in host memory.
    pub(crate) fn of(tensor: &'a AnyTensor) -> Self {
        let values = tensor.host().map(|values| values.widen());
        HostHeads { values: values.unwrap_or_default(), leading: tensor.leading() }
    }

    /// Widens a tensor in host memory. A tensor of two axes has its heads next to each other in the rows, `[rows, heads
    /// * d]`.
    pub(crate) fn in_rows(tensor: &'a AnyTensor, d: usize) -> Self {
        let own = Self::of(tensor);
        let [rows, width] = *tensor.shape() else {
            return own;
        };
        let heads = (0..width / d.max(1)).flat_map(|head| (0..rows).map(move |row| (head, row)));
        let values = heads.flat_map(|(head, row)| &own.values[row * own.leading + head * d..][..d]);
        HostHeads { values: values.copied().collect(), leading: d }
    }

    fn row(&self, row: usize, d: usize) -> &[f64] {
        &self.values[row * self.leading..][..d]
    }
}

/// Operands and extents of an attention.
pub struct HostAttention<'a> {
    pub q: HostHeads<'a>,
    pub k: HostHeads<'a>,
    pub v: HostHeads<'a>,
    /// Mask of each head.
    pub masks: Vec<Seen<'a>>,
    pub key_heads: usize,
    pub d: usize,
    pub scale: f64,
}

impl<'a> HostAttention<'a> {
    /// Creates an attention from queries, keys and values, and the mask of each head.
    pub(crate) fn new(
        [q, k, v]: [HostHeads<'a>; 3],
        masks: impl Iterator<Item = Seen<'a>>,
        extents: AttentionExtents,
        scale: f64,
    ) -> Self {
        HostAttention {
            q,
            k,
            v,
            masks: masks.collect(),
            key_heads: extents.key_heads,
            d: extents.d,
            scale,
        }
    }

    fn row<'b>(&self, heads: &'b HostHeads<'_>, row: usize) -> &'b [f64] {
        heads.row(row, self.d)
    }

    fn key_head(&self, head: usize) -> usize {
        head / (self.masks.len() / self.key_heads)
    }

    /// Returns the scaled scores of one query of a head at `keys`.
    fn scores(&self, head: usize, query: usize, keys: &[usize]) -> Vec<f64> {
        let [m, n] = self.masks[head].shape();
        let q = self.row(&self.q, head * m + query);
        let score = |key: &usize| {
            let k = self.row(&self.k, self.key_head(head) * n + key);
            let dot: f64 = q.iter().zip(k).map(|(q, k)| q * k).sum();
            dot * self.scale
        };
        keys.iter().map(score).collect()
    }

    /// Computes the output of one query of a head into `sums`, which are zero before. Returns the logarithm of its sum
    /// of exponentials.
    pub fn query(&self, head: usize, query: usize, sums: &mut [f64]) -> f32 {
        let mask = self.masks[head];
        let n = mask.shape()[1];
        let key_head = self.key_head(head);
        let keys = mask.keys(query);
        let (weights, base, sum) = softmax_of(self.scores(head, query, &keys));
        for (key, weight) in keys.iter().zip(&weights) {
            let v = self.row(&self.v, key_head * n + key);
            for (sum, v) in sums.iter_mut().zip(v) {
                *sum += weight * v;
            }
        }
        for own in sums {
            *own = if sum == 0.0 { 0.0 } else { *own / sum };
        }
        (base + sum.ln()) as f32
    }

    /// Computes all queries of all heads. The output is `[heads, m, d]`, or `[m, heads * d]` if it has two axes.
    pub(crate) fn run(&self, out: &mut AnyTensor, log_sum: Option<&mut [f32]>) {
        let queries = self.masks.first().map_or(0, |mask| mask.shape()[0]);
        let rows = queries * self.masks.len();
        // Bits of f32. The thread of a query stores the bits of that query.
        let logs: Vec<AtomicU32> = (0..rows).map(|_| AtomicU32::new(0)).collect();
        let query = |head: usize, query: usize, sums: &mut [f64]| {
            let log = self.query(head, query, sums);
            logs[head * queries + query].store(log.to_bits(), Ordering::Relaxed);
        };
        if let [queries, width] = *out.shape() {
            out.store_rows(queries, width, &|row, sums: &mut [f64]| {
                let heads = sums.chunks_mut(self.d.max(1)).enumerate();
                heads.for_each(|(head, sums)| query(head, row, sums));
            });
        } else {
            out.store_rows(rows, self.d, &|row, sums: &mut [f64]| {
                query(row / queries, row % queries, sums);
            });
        }
        if let Some(log_sum) = log_sum {
            for (to, log) in log_sum.iter_mut().zip(logs) {
                *to = f32::from_bits(log.into_inner());
            }
        }
    }
}

/// Returns the exponentials of scores minus their max, the max (0 if no score is above -Inf), and the sum of the
/// exponentials.
fn softmax_of(scores: Vec<f64>) -> (Vec<f64>, f64, f64) {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let base = if largest == f64::NEG_INFINITY { 0.0 } else { largest };
    let weights: Vec<f64> = scores.iter().map(|s| (s - base).exp()).collect();
    let sum = weights.iter().sum();
    (weights, base, sum)
}
