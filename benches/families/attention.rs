//! Attention at the nonzeros of a mask, and over a cache.

pub mod decode;
pub mod entries;
pub mod gradient;
pub mod key_blocks;
pub mod masks;

use crate::operations::{Entry, Own};
use crate::prelude::*;
use einsparse::formats::generate;
use einsparse::ops::AttentionOptions;

/// Operations of the family.
pub const OPERATIONS: &[Entry] = &[
    (entries::OP, Own(entries::run)),
    (gradient::OP, Own(gradient::run)),
    ("attention_masks", Own(masks::run)),
    (key_blocks::OP, Own(key_blocks::run)),
    (decode::OP, Own(decode::run)),
];

/// Shape of a case: heads, queries and keys, elements of a query.
type Shape = [usize; 3];

/// Standard normal values, one tensor for each seed, starting at `SEED + 1`.
fn drawn<T: Scalar, const N: usize>(shape: Shape) -> Result<[Dense<T>; N]> {
    let one = |i: usize| {
        let values = generate::random_values::<T>(shape.iter().product(), SEED + 1 + i as u64);
        Dense::new(shape.to_vec(), values)
    };
    let all: Vec<Dense<T>> = (0..N).map(one).collect::<Result<_, _>>()?;
    all.try_into().map_err(|_| "as many as asked for".into())
}

fn uploaded<T: Scalar, const N: usize>(
    bench: &Bench<'_>,
    host: &[Dense<T>; N],
) -> Result<[Tensor<T>; N]> {
    let all: Vec<Tensor<T>> = host.iter().map(|x| bench.upload(x)).collect::<Result<_>>()?;
    all.try_into().map_err(|_| "as many as given".into())
}

fn options([heads, _, dim]: Shape, causal: Option<i64>) -> AttentionOptions {
    AttentionOptions { heads, dim, causal, ..AttentionOptions::default() }
}

/// Max error of `sample` queries of each head, over the error that rounding explains. Weights and output are rounded to
/// the element type, sums are kept in f32. `keys` returns the keys of a head's query.
fn worst_error<T: Scalar>(
    host: &[Dense<T>; 3],
    out: &Tensor<T>,
    sample: usize,
    keys: impl Fn(usize, usize) -> Vec<u32>,
) -> Result<f64> {
    let out = out.to_dense()?;
    let &[heads, extent, dim] = out.shape() else {
        return Err("an output of three axes".into());
    };
    let roundoff = if T::NAME == "f16" { 11 } else { 8 };
    let roundoff = 0.5f64.powi(roundoff);
    let mut worst = 0f64;
    for (head, i) in (0..heads).flat_map(|head| (0..sample).map(move |i| (head, i))) {
        let query = (i * extent / sample + i * 37 + head * 11) % extent;
        let row = |dense: &Dense<T>, row: usize| -> Vec<f64> {
            let own = &dense.values()[(head * extent + row) * dim..][..dim];
            own.iter().map(|x| x.to_f64()).collect()
        };
        let (q, keys) = (row(&host[0], query), keys(head, query));
        let score = |&key: &u32| {
            let k = row(&host[1], key as usize);
            let dot: f64 = q.iter().zip(&k).map(|(q, k)| q * k).sum();
            dot / (dim as f64).sqrt()
        };
        let scores: Vec<f64> = keys.iter().map(score).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let (mut wanted, mut size) = (vec![0.0; dim], vec![0.0; dim]);
        for (score, &key) in scores.iter().zip(&keys) {
            let weight = (score - max).exp() / sum;
            let v = row(&host[2], key as usize);
            for ((w, s), v) in wanted.iter_mut().zip(&mut size).zip(v) {
                *w += weight * v;
                *s += weight * v.abs();
            }
        }
        for ((w, s), found) in wanted.iter().zip(&size).zip(row(&out, query)) {
            let bound = 2.0 * roundoff * (w.abs() + s) + 1e-5;
            worst = worse(worst, (found - w).abs() / bound);
        }
    }
    Ok(worst)
}
