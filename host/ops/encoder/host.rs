//! The same on the CPU: steps in f64, their results rounded to the element type, a sequence at a time.

use rayon::prelude::*;

use super::{EncoderLayer, EncoderOptions, EncoderWeights};
use crate::cpu::attention::{HostAttention, HostHeads};
use crate::cpu::gelu;
use crate::queries::{Flags, Seen};
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// `A W + bias` of so many rows of A, which may have no elements, rounded.
fn product<T: Scalar>(
    (a, rows): (&[T], usize),
    [w, bias]: [&Tensor<T>; 2],
    through_gelu: bool,
) -> Vec<T> {
    let &[inputs, outputs] = w.shape() else {
        return Vec::new();
    };
    let (values, leading) = (w.host().unwrap_or(&[]), w.leading());
    let bias = bias.host().unwrap_or(&[]);
    let mut out = Vec::with_capacity(rows * outputs);
    for row in 0..rows {
        let row = &a[row * inputs..][..inputs];
        let mut sums: Vec<f64> = bias[..outputs].iter().map(|b| b.to_f64()).collect();
        for (a, w) in row.iter().zip(values.chunks(leading.max(1))) {
            let a = a.to_f64();
            for (sum, w) in sums.iter_mut().zip(w) {
                *sum += a * w.to_f64();
            }
        }
        out.extend(sums.into_iter().map(|x| {
            let x = if through_gelu { gelu(x) } else { x };
            T::from_f64(x)
        }));
    }
    out
}

/// `(x + y - mean) / sqrt(variance + epsilon) * factor + summand`, rounded.
pub(super) fn norm<T: Scalar>(x: &[T], y: &[T], own: [&Tensor<T>; 2], epsilon: f64, out: &mut [T]) {
    let [factor, summand] = own.map(|tensor| tensor.host().unwrap_or(&[]));
    let sums: Vec<f64> = x
        .iter()
        .zip(y)
        .map(|(x, y)| x.to_f64() + y.to_f64())
        .collect();
    let count = sums.len().max(1) as f64;
    let mean = sums.iter().sum::<f64>() / count;
    let variance = sums.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
    let by = 1.0 / (variance + epsilon).sqrt();
    for (i, (out, x)) in out.iter_mut().zip(sums).enumerate() {
        *out = T::from_f64((x - mean) * by * factor[i].to_f64() + summand[i].to_f64());
    }
}

impl<T: Scalar> EncoderLayer<T> {
    pub(super) fn run_on_host(
        &self,
        x: &Tensor<T>,
        lengths: &Tensor<i32>,
        weights: &EncoderWeights<'_, T>,
        out: &mut Tensor<T>,
    ) {
        let EncoderOptions {
            distance, width, ..
        } = self.options;
        let lengths = lengths.host().unwrap_or(&[]);
        let (values, from, to) = (x.host().unwrap_or(&[]), x.leading(), out.leading());
        let items = out
            .host_mut()
            .unwrap_or(&mut [])
            .par_chunks_mut((distance * to).max(1));
        items
            .enumerate()
            .take(lengths.len())
            .for_each(|(item, out)| {
                let length = usize::try_from(lengths[item]).unwrap_or(0).min(distance);
                let rows =
                    (0..length).flat_map(|row| &values[(item * distance + row) * from..][..width]);
                let x: Vec<T> = rows.copied().collect();
                for (row, own) in self.sequence(&x, weights).chunks(width.max(1)).enumerate() {
                    out[row * to..][..width].copy_from_slice(own);
                }
            });
    }

    /// The layer on the tokens of a sequence.
    fn sequence(&self, x: &[T], weights: &EncoderWeights<'_, T>) -> Vec<T> {
        let EncoderOptions { width, epsilon, .. } = self.options;
        let rows = x.len() / width.max(1);
        let product = |a: &[T], own, through_gelu| product((a, rows), own, through_gelu);
        let seen = self.attend(&product(x, weights.qkv, false));
        let normed = |x: &[T], y: &[T], own| {
            let mut out = vec![T::ZERO; x.len()];
            for (row, out) in out.chunks_mut(width.max(1)).enumerate() {
                let span = row * width..(row + 1) * width;
                norm(&x[span.clone()], &y[span], own, epsilon, out);
            }
            out
        };
        let h = normed(x, &product(&seen, weights.out, false), weights.first_norm);
        let hidden = product(&h, weights.up, true);
        normed(
            &h,
            &product(&hidden, weights.down, false),
            weights.second_norm,
        )
    }

    /// Attention of the tokens of a sequence, whose queries, keys and values lie beside one another.
    fn attend(&self, qkv: &[T]) -> Vec<T> {
        let EncoderOptions { width, heads, .. } = self.options;
        let (count, d) = (qkv.len() / (3 * width).max(1), width / heads);
        // Heads behind each other, `[heads, count, d]`.
        let part = |part: usize| -> Vec<T> {
            (0..heads * count)
                .flat_map(|i| {
                    let (head, row) = (i / count.max(1), i % count.max(1));
                    qkv[row * 3 * width + part * width + head * d..][..d].to_vec()
                })
                .collect()
        };
        let parts = [part(0), part(1), part(2)];
        let [q, k, v] = parts
            .each_ref()
            .map(|values| HostHeads { values, leading: d });
        let mask = Flags {
            shape: [count, count],
            full: true,
            length: count,
            ..Flags::default()
        };
        let attention = HostAttention {
            q,
            k,
            v,
            masks: vec![Seen::Flags(&mask); heads],
            key_heads: heads,
            d,
            scale: 1.0 / (d as f64).sqrt(),
        };
        let mut by_head = vec![T::ZERO; heads * count * d];
        attention.run(&mut by_head, d, None);
        (0..count * heads)
            .flat_map(|i| {
                let (row, head) = (i / heads, i % heads);
                by_head[(head * count + row) * d..][..d].to_vec()
            })
            .collect()
    }
}
