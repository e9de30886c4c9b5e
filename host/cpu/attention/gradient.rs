//! Gradient of attention at the entries of a mask on the CPU, in f64 and rounded once. Each head of keys is the work of one
//! thread.

use einsparse_formats::Element;
use rayon::prelude::*;

use super::{HostAttention, HostHeads, softmax_of};

/// Gradients of the queries and of the keys and values of one head of keys, dense.
struct Own {
    queries: Vec<f64>,
    keys: [Vec<f64>; 2],
}

/// to += factor * from
fn add<T: Element>(to: &mut [f64], factor: f64, from: &[T]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from.to_f64();
    }
}

fn dot<T: Element>(a: &[T], b: &[T]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a.to_f64() * b.to_f64()).sum()
}

impl<T: Element> HostAttention<'_, T> {
    /// Gradients of queries, keys and values, rows `leading` elements apart, from that of the output.
    pub(crate) fn gradient(
        &self,
        upstream: HostHeads<'_, T>,
        outputs: [&mut [T]; 3],
        leading: [usize; 3],
    ) {
        let all: Vec<Own> = (0..self.key_heads)
            .into_par_iter()
            .map(|key_head| self.gradient_of(upstream, key_head))
            .collect();
        let [dq, dk, dv] = outputs;
        self.round(all.iter().map(|own| &own.queries), dq, leading[0]);
        self.round(all.iter().map(|own| &own.keys[0]), dk, leading[1]);
        self.round(all.iter().map(|own| &own.keys[1]), dv, leading[2]);
    }

    fn round<'a>(&self, all: impl Iterator<Item = &'a Vec<f64>>, to: &mut [T], leading: usize) {
        let rows = all.flat_map(|own| own.chunks(self.d.max(1)));
        for (to, own) in to.chunks_mut(leading.max(1)).zip(rows) {
            for (to, own) in to.iter_mut().zip(own) {
                *to = T::from_f64(*own);
            }
        }
    }

    fn gradient_of(&self, upstream: HostHeads<'_, T>, key_head: usize) -> Own {
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
            let from = self.row(&upstream, head * m + query);
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
