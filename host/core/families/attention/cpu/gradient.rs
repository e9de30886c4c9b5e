//! CPU implementation of the gradient of attention at the entries of a mask, accumulated in f64 and rounded once. One
//! thread computes each key head.

use super::{HostAttention, HostHeads, softmax_of};
use crate::parallel;
use crate::tensor::AnyTensor;

/// Dense gradients of the queries, keys and values of one key head.
struct Own {
    queries: Vec<f64>,
    keys: [Vec<f64>; 2],
}

/// `to += factor * from`
fn add(to: &mut [f64], factor: f64, from: &[f64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl HostAttention<'_> {
    /// Computes the gradients of queries, keys and values from the gradient of the output.
    pub(crate) fn gradient(&self, upstream: &HostHeads<'_>, [dq, dk, dv]: [&mut AnyTensor; 3]) {
        let all = self.of_all(upstream);
        self.round(all.iter().map(|own| &own.queries), dq);
        self.round(all.iter().map(|own| &own.keys[0]), dk);
        self.round(all.iter().map(|own| &own.keys[1]), dv);
    }

    /// Computes the three gradients into the rows of one tensor, `[m, (heads + 2 key_heads) * d]`.
    pub(crate) fn gradient_in_rows(&self, upstream: &HostHeads<'_>, to: &mut AnyTensor) {
        let all = self.of_all(upstream);
        let (m, d) = (to.shape()[0], self.d);
        let part =
            |of: fn(&Own) -> &Vec<f64>| all.iter().flat_map(move |own| of(own).iter().copied());
        let queries_and_keys = part(|own| &own.queries).chain(part(|own| &own.keys[0]));
        let parts: Vec<f64> = queries_and_keys.chain(part(|own| &own.keys[1])).collect();
        let heads = self.masks.len() + 2 * self.key_heads;
        to.store_rows(m, heads * d, &|row, sums: &mut [f64]| {
            for (head, sums) in sums.chunks_mut(d.max(1)).enumerate() {
                sums.copy_from_slice(&parts[(head * m + row) * d..][..d]);
            }
        });
    }

    fn of_all(&self, upstream: &HostHeads<'_>) -> Vec<Own> {
        let own = |key_head: usize| self.gradient_of(upstream, key_head);
        parallel::collect(self.key_heads, 1, &own)
    }

    fn round<'a>(&self, all: impl Iterator<Item = &'a Vec<f64>>, to: &mut AnyTensor) {
        let rows = all.flat_map(|own| own.chunks(self.d.max(1)));
        let rows: Vec<&[f64]> = rows.collect();
        to.store_rows(rows.len(), self.d, &|row, sums: &mut [f64]| {
            sums.copy_from_slice(rows[row]);
        });
    }

    fn gradient_of(&self, upstream: &HostHeads<'_>, key_head: usize) -> Own {
        let ratio = self.masks.len() / self.key_heads;
        let [m, n] = self.masks[key_head * ratio].shape();
        let mut own = Own {
            queries: vec![0.0; ratio * m * self.d],
            keys: [vec![0.0; n * self.d], vec![0.0; n * self.d]],
        };
        let d = self.d;
        for row in 0..ratio * m {
            let (head, query) = (key_head * ratio + row / m, row % m);
            let q = self.row(&self.q, head * m + query);
            let from = self.row(upstream, head * m + query);
            let keys = self.masks[head].keys(query);
            let (weights, _, sum) = softmax_of(self.scores(head, query, &keys));
            if sum == 0.0 {
                continue;
            }
            let weights: Vec<f64> = weights.iter().map(|w| w / sum).collect();
            let slope = |&key: &usize| dot(from, self.row(&self.v, key_head * n + key));
            let slopes: Vec<f64> = keys.iter().map(slope).collect();
            let mean: f64 = weights.iter().zip(&slopes).map(|(w, s)| w * s).sum();
            for ((&key, weight), slope) in keys.iter().zip(&weights).zip(slopes) {
                let slope = weight * (slope - mean) * self.scale;
                let k = self.row(&self.k, key_head * n + key);
                add(&mut own.queries[row * d..][..d], slope, k);
                add(&mut own.keys[0][key * d..][..d], slope, q);
                add(&mut own.keys[1][key * d..][..d], *weight, from);
            }
        }
        own
    }
}
