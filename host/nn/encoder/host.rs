//! CPU implementation of the encoder: steps in f64, rounded to the element type, one sequence at a time.

use std::borrow::Cow;
use std::ops::Range;

use super::{EncoderOptions, EncoderWeights};
use crate::cpu::gelu;
use crate::families::attention::cpu::{HostAttention, HostHeads};
use crate::families::attention::queries::{Flags, Seen};
use crate::parallel;
use crate::registry::Scalar;
use crate::tensor::{AnyTensor, Tensor};
use crate::values::rounding;

/// Values of a matrix or vector in host memory, and its row stride in elements; empty for a tensor in device memory.
type Wide<'a> = (Cow<'a, [f64]>, usize);

fn wide(tensor: &AnyTensor) -> Wide<'_> {
    let values = tensor.host().map(|values| values.widen());
    (values.unwrap_or_default(), tensor.leading())
}

/// Computes `(x + y - mean) / sqrt(variance + epsilon) * factor + summand` of one row, not rounded.
fn norm(x: &[f64], y: &[f64], [factor, summand]: &[Wide<'_>; 2], epsilon: f64, out: &mut [f64]) {
    let sums: Vec<f64> = x.iter().zip(y).map(|(x, y)| x + y).collect();
    let count = sums.len().max(1) as f64;
    let mean = sums.iter().sum::<f64>() / count;
    let variance = sums.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
    let by = 1.0 / (variance + epsilon).sqrt();
    for (i, (out, x)) in out.iter_mut().zip(sums).enumerate() {
        *out = (x - mean) * by * factor.0[i] + summand.0[i];
    }
}

/// Computes [`norm`] of `rows` rows, rounded.
pub(super) fn norms(
    rows: usize,
    [x, y]: [&AnyTensor; 2],
    affine: [&AnyTensor; 2],
    epsilon: f64,
    out: &mut AnyTensor,
) {
    let ([x, y], affine) = ([wide(x), wide(y)], affine.map(wide));
    let columns = out.shape()[1];
    out.store_rows(rows, columns, &|row, out: &mut [f64]| {
        let [x, y] = [&x, &y].map(|(values, leading)| &values[row * leading..][..columns]);
        norm(x, y, &affine, epsilon, out);
    });
}

/// Rows of each sequence of a batch.
pub(super) struct Batch<'a> {
    options: &'a EncoderOptions,
    sequences: Vec<Range<usize>>,
}

impl<'a> Batch<'a> {
    /// `packed`: sequences follow each other without padding.
    pub(super) fn new(options: &'a EncoderOptions, lengths: &Tensor<i32>, packed: bool) -> Self {
        let (mut before, most) = (0, options.rows());
        // The storage may be longer than the lengths.
        let lengths = lengths.host().unwrap_or(&[]).iter().take(options.items);
        let lengths = lengths.enumerate();
        let sequences = lengths.map(|(item, length)| {
            let length = usize::try_from(*length).unwrap_or(0);
            let length = length.min(options.distance).min(most - before);
            let first = if packed { before } else { item * options.distance };
            before += length;
            first..first + length
        });
        Batch { options, sequences: sequences.collect() }
    }

    /// Runs one layer at a time: the f64 weights of all layers would take many times the memory.
    pub(super) fn run<T: Scalar>(
        &self,
        x: &Tensor<T>,
        layers: &[EncoderWeights<'_, T>],
        out: &mut AnyTensor,
    ) {
        let width = self.options.width;
        let (values, from) = wide(x.any());
        let rows_of = |rows: &Range<usize>| {
            let rows = rows.clone().flat_map(|row| &values[row * from..][..width]);
            rows.copied().collect::<Vec<f64>>()
        };
        let mut all: Vec<Vec<f64>> = self.sequences.iter().map(rows_of).collect();
        for weights in layers {
            let layer = HostLayer::new(self.options, weights);
            all = parallel::collect(all.len(), 1, &|item| layer.sequence(&all[item]));
        }
        let to = out.leading();
        for (rows, own) in self.sequences.iter().zip(&all) {
            for (row, own) in rows.clone().zip(own.chunks(width.max(1))) {
                if let Some(out) = out.host_mut() {
                    let out = out.part(row * to, width);
                    out.narrow((1, width, width), own);
                }
            }
        }
    }
}

/// Layer with its weights in f64.
struct HostLayer<'a> {
    options: &'a EncoderOptions,
    qkv: [Wide<'a>; 2],
    out: [Wide<'a>; 2],
    up: [Wide<'a>; 2],
    down: [Wide<'a>; 2],
    first_norm: [Wide<'a>; 2],
    second_norm: [Wide<'a>; 2],
    round: fn(f64) -> f64,
}

impl<'a> HostLayer<'a> {
    fn new<T: Scalar>(options: &'a EncoderOptions, weights: &EncoderWeights<'a, T>) -> Self {
        let of = |pair: [&'a Tensor<T>; 2]| pair.map(|tensor| wide(tensor.any()));
        HostLayer {
            options,
            qkv: of(weights.qkv),
            out: of(weights.out),
            up: of(weights.up),
            down: of(weights.down),
            first_norm: of(weights.first_norm),
            second_norm: of(weights.second_norm),
            round: rounding(T::DTYPE),
        }
    }

    /// Computes `A W + bias` of `rows` rows of A, rounded. The rows may be empty.
    fn product(
        &self,
        (a, rows): (&[f64], usize),
        [(values, leading), (bias, _)]: &[Wide<'_>; 2],
        outputs: usize,
        through_gelu: bool,
    ) -> Vec<f64> {
        let inputs = a.len() / rows.max(1);
        let mut out = Vec::with_capacity(rows * outputs);
        for row in 0..rows {
            let row = &a[row * inputs..][..inputs];
            let mut sums = bias[..outputs].to_vec();
            for (a, w) in row.iter().zip(values.chunks((*leading).max(1))) {
                for (sum, w) in sums.iter_mut().zip(w) {
                    *sum += a * w;
                }
            }
            out.extend(sums.into_iter().map(|x| {
                let x = if through_gelu { gelu(x) } else { x };
                (self.round)(x)
            }));
        }
        out
    }

    /// Computes the layer for the tokens of one sequence.
    fn sequence(&self, x: &[f64]) -> Vec<f64> {
        let EncoderOptions { width, hidden, epsilon, .. } = *self.options;
        let rows = x.len() / width.max(1);
        let product = |a: &[f64], own, outputs, through_gelu| {
            self.product((a, rows), own, outputs, through_gelu)
        };
        let normed = |x: &[f64], y: &[f64], own| {
            let mut out = vec![0.0; x.len()];
            for (row, out) in out.chunks_mut(width.max(1)).enumerate() {
                let span = row * width..(row + 1) * width;
                norm(&x[span.clone()], &y[span], own, epsilon, out);
                out.iter_mut().for_each(|x| *x = (self.round)(*x));
            }
            out
        };
        let seen = self.attend(&product(x, &self.qkv, 3 * width, false));
        let seen = product(&seen, &self.out, width, false);
        let h = normed(x, &seen, &self.first_norm);
        let inner = product(&h, &self.up, hidden, true);
        let inner = product(&inner, &self.down, width, false);
        normed(&h, &inner, &self.second_norm)
    }

    /// Computes attention of the tokens of one sequence. Each row of `qkv` contains a query, a key and a value.
    fn attend(&self, qkv: &[f64]) -> Vec<f64> {
        let EncoderOptions { width, heads, .. } = *self.options;
        let (count, d) = (qkv.len() / (3 * width).max(1), width / heads);
        // One head after the other, `[heads, count, d]`.
        let part = |part: usize| -> HostHeads<'_> {
            let rows = (0..heads * count).flat_map(|i| {
                let (head, row) = (i / count.max(1), i % count.max(1));
                &qkv[row * 3 * width + part * width + head * d..][..d]
            });
            HostHeads { values: rows.copied().collect(), leading: d }
        };
        let mask = Flags { shape: [count, count], full: true, length: count, ..Flags::default() };
        let attention = HostAttention {
            q: part(0),
            k: part(1),
            v: part(2),
            masks: vec![Seen::Flags(&mask); heads],
            key_heads: heads,
            d,
            scale: 1.0 / (d as f64).sqrt(),
        };
        let mut all = vec![0.0; count * width];
        for (i, sums) in all.chunks_mut(d.max(1)).enumerate() {
            attention.query(i % heads, i / heads, sums);
            sums.iter_mut().for_each(|x| *x = (self.round)(*x));
        }
        all
    }
}
