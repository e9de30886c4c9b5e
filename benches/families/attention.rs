//! Attention at the nonzeros of a mask, and over a cache.

mod decode;
mod entries;
mod gradient;
mod key_blocks;
mod masks;

use crate::prelude::*;
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

/// Queries, keys and values.
fn drawn<T: Scalar>(shape: Shape) -> [Dense<T>; 3] {
    [1, 2, 3].map(|seed| values::dense(&shape, seed, NORMAL))
}

fn options([heads, _, dim]: Shape, causal: Option<i64>) -> AttentionOptions {
    AttentionOptions { heads, dim, causal, ..AttentionOptions::default() }
}

/// Row of `products` products at `nnz` positions of each head. `m` = `k` are queries and keys of a head, `n` is the
/// elements of a query times the heads.
fn row<T: Scalar>(op: &str, name: &str, shape: Shape, nnz: usize, products: f64) -> Row {
    let [heads, extent, dim] = shape;
    Row::new(op, name, [extent, extent, dim * heads], nnz, T::DTYPE.name())
        .flops(2.0 * products * (nnz * dim * heads) as f64)
        .dense()
}

/// [`worst_error`] of `sample` queries of each head. `keys` returns the keys of a head's query.
fn sampled_error<T: Scalar>(
    host: &[Dense<T>; 3],
    out: &Tensor<T>,
    sample: usize,
    keys: impl Fn(usize, usize) -> Vec<u32>,
) -> Result<f64> {
    let &[heads, extent, dim] = out.shape() else {
        return Err("an output of three axes".into());
    };
    let all = (0..heads).flat_map(|head| (0..sample).map(move |i| (head, i)));
    let rows = all.map(|(head, i)| {
        let query = (i * extent / sample + i * 37 + head * 11) % extent;
        let keys = keys(head, query).into_iter().map(|key| head * extent + key as usize);
        (head * extent + query, keys.collect())
    });
    worst_error(host.each_ref().map(Dense::values), dim, out, rows)
}

/// Max error of some queries, over the error that rounding explains. Weights and output are rounded to the element
/// type, sums are kept in f32. A query is a row of `q` and of the output, with the rows of its keys and values.
fn worst_error<T: Scalar>(
    [q, k, v]: [&[T]; 3],
    dim: usize,
    out: &Tensor<T>,
    rows: impl IntoIterator<Item = (usize, Vec<usize>)>,
) -> Result<f64> {
    let out = out.to_dense()?;
    let line = |of: &[T], row: usize| -> Vec<f64> {
        of[row * dim..][..dim].iter().map(|x| x.to_f64()).collect()
    };
    let mut worst = 0f64;
    for (query, keys) in rows {
        let own = line(q, query);
        let score = |&key: &usize| {
            let dot: f64 = own.iter().zip(line(k, key)).map(|(q, k)| q * k).sum();
            dot / (dim as f64).sqrt()
        };
        let scores: Vec<f64> = keys.iter().map(score).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let mut wanted = vec![Sum::default(); dim];
        for (score, &key) in scores.iter().zip(&keys) {
            add_line(&mut wanted, (score - max).exp() / sum, &v[key * dim..]);
        }
        for (w, found) in wanted.iter().zip(line(out.values(), query)) {
            let bound = 2.0 * roundoff::<T>() * (w.value.abs() + w.size) + 1e-5;
            worst = worse(worst, (found - w.value).abs() / bound);
        }
    }
    Ok(worst)
}
