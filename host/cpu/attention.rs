//! Attention at the entries of a mask on the CPU, in f64 and rounded once. Each query of each head is the work of one
//! thread.

mod gradient;

use einsparse_formats::Element;
use rayon::prelude::*;

use crate::queries::Seen;

/// Matrices of all heads, `[heads, rows, d]`, rows `leading` elements apart.
#[derive(Clone, Copy)]
pub(crate) struct HostHeads<'a, T> {
    pub values: &'a [T],
    pub leading: usize,
}

/// What is computed.
pub(crate) struct HostAttention<'a, T> {
    pub q: HostHeads<'a, T>,
    pub k: HostHeads<'a, T>,
    pub v: HostHeads<'a, T>,
    /// The mask of each head.
    pub masks: Vec<Seen<'a>>,
    pub key_heads: usize,
    pub d: usize,
    pub scale: f64,
}

impl<T: Element> HostAttention<'_, T> {
    fn row<'b>(&self, heads: &HostHeads<'b, T>, row: usize) -> &'b [T] {
        &heads.values[row * heads.leading..][..self.d]
    }

    fn key_head(&self, head: usize) -> usize {
        head / (self.masks.len() / self.key_heads)
    }

    /// Scaled scores of one query of a head at these keys.
    fn scores(&self, head: usize, query: usize, keys: &[usize]) -> Vec<f64> {
        let [m, n] = self.masks[head].shape();
        let q = self.row(&self.q, head * m + query);
        let score = |key: &usize| {
            let k = self.row(&self.k, self.key_head(head) * n + key);
            let dot: f64 = q.iter().zip(k).map(|(q, k)| q.to_f64() * k.to_f64()).sum();
            dot * self.scale
        };
        keys.iter().map(score).collect()
    }

    /// Output of one query of a head, and the logarithm of its sum of exponentials.
    fn query(&self, head: usize, query: usize, out: &mut [T]) -> f32 {
        let mask = self.masks[head];
        let n = mask.shape()[1];
        let key_head = self.key_head(head);
        let keys = mask.keys(query);
        let (weights, base, sum) = softmax_of(self.scores(head, query, &keys));
        let mut sums = vec![0.0; self.d];
        for (key, weight) in keys.iter().zip(&weights) {
            let v = self.row(&self.v, key_head * n + key);
            for (sum, v) in sums.iter_mut().zip(v) {
                *sum += weight * v.to_f64();
            }
        }
        for (out, own) in out.iter_mut().zip(sums) {
            *out = T::from_f64(if sum == 0.0 { 0.0 } else { own / sum });
        }
        (base + sum.ln()) as f32
    }

    /// All queries of all heads; output rows `leading` elements apart.
    pub(crate) fn run(&self, out: &mut [T], leading: usize, log_sum: Option<&mut [f32]>) {
        let queries = self.masks.first().map_or(0, |mask| mask.shape()[0]);
        let rows = out.par_chunks_mut(leading.max(1)).enumerate();
        let logs: Vec<f32> = rows
            .take(queries * self.masks.len())
            .map(|(row, out)| self.query(row / queries, row % queries, &mut out[..self.d]))
            .collect();
        if let Some(log_sum) = log_sum {
            log_sum.copy_from_slice(&logs);
        }
    }
}

/// Exponentials of scores less the largest, that largest (0 where none is above -Inf), and their sum.
fn softmax_of(scores: Vec<f64>) -> (Vec<f64>, f64, f64) {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let base = if largest == f64::NEG_INFINITY {
        0.0
    } else {
        largest
    };
    let weights: Vec<f64> = scores.iter().map(|s| (s - base).exp()).collect();
    let sum = weights.iter().sum();
    (weights, base, sum)
}
