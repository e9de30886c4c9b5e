//! Operands of attention in host memory, and the expected results.

use crate::support::Rng;
use crate::support::rows::kernels_here;
use crate::support::runs::finish;
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense};
use einsparse::ops::{AttentionOptions, SparseAttention};
use einsparse::registry::{Operation, Scalar};
use einsparse::{Context, SparseTensor, Tensor};

/// Returns the names of the kernels for an element type and a head dimension. The CPU has one unnamed variant.
pub fn variants<T: Scalar>(context: &Context, dim: usize) -> Vec<Option<&'static str>> {
    if context.device().is_none() {
        return vec![None];
    }
    let fits = |row: &&einsparse::kernels::table::Row| {
        row.operation == Operation::Attention
            && row.dtype == T::DTYPE
            && row.columns as usize == dim
    };
    let names: Vec<_> = kernels_here().filter(fits).map(|r| Some(r.name)).collect();
    assert!(!names.is_empty(), "no kernel for {} {dim}", T::NAME);
    names
}

pub fn csr<T: Scalar>(pattern: CsrPattern) -> AnySparse<T> {
    let values = vec![T::from_f64(f64::NAN); pattern.columns().len()];
    Csr::new(pattern, values).unwrap().into()
}

/// Returns the keys that a query sees in a mask and that are not hidden.
fn keys(pattern: &CsrPattern, row: usize, o: &AttentionOptions, head: usize) -> Vec<usize> {
    let length = o.lengths.as_ref().map_or(usize::MAX, |l| l[head * l.len() / o.heads]);
    let of_row = &pattern.columns()[pattern.row(row)];
    let keys = of_row.iter().map(|&c| c as usize);
    keys.filter(|&key| {
        key < length && o.causal.is_none_or(|offset| key as i64 <= row as i64 + offset)
    })
    .collect()
}

/// Operands in host memory.
pub struct Case<T> {
    pub patterns: Vec<CsrPattern>,
    pub options: AttentionOptions,
    pub q: Dense<T>,
    pub k: Dense<T>,
    pub v: Dense<T>,
}

/// Expected output of a query, the sum of magnitudes that bounds its error, and the logarithm of its sum of
/// exponentials.
struct Wanted {
    out: Vec<f64>,
    size: Vec<f64>,
    log_sum: f64,
}

impl<T: Scalar> Case<T> {
    pub fn new(patterns: Vec<CsrPattern>, options: AttentionOptions, seed: u64) -> Self {
        let (m, n, d) = (patterns[0].rows(), patterns[0].cols(), options.dim);
        let mut rng = Rng(seed);
        let mut dense = |heads: usize, rows: usize| {
            // Large scores: the maximum of one tile does not represent the whole row.
            let values: Vec<T> =
                (0..heads * rows * d).map(|_| T::from_f64(2.0 * rng.unit())).collect();
            Dense::new(vec![heads, rows, d], values).unwrap()
        };
        let key_heads = options.key_heads.unwrap_or(options.heads);
        Case {
            q: dense(options.heads, m),
            k: dense(key_heads, n),
            v: dense(key_heads, n),
            patterns,
            options,
        }
    }

    fn wanted(&self, head: usize, query: usize) -> Wanted {
        let o = &self.options;
        let group = o.heads / o.key_heads.unwrap_or(o.heads);
        let row = |dense: &Dense<T>, head: usize, row: usize| -> Vec<f64> {
            let at = (head * dense.shape()[1] + row) * o.dim;
            let row = &dense.values()[at..at + o.dim];
            row.iter().map(|x| x.to_f64()).collect()
        };
        let q = row(&self.q, head, query);
        let keys = keys(&self.patterns[head % self.patterns.len()], query, o, head);
        let scale = o.scale.unwrap_or(1.0 / (o.dim as f64).sqrt());
        let score = |&key: &usize| {
            let k = row(&self.k, head / group, key);
            scale * q.iter().zip(&k).map(|(q, k)| q * k).sum::<f64>()
        };
        let scores: Vec<f64> = keys.iter().map(score).collect();
        let max = scores.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let (mut out, mut size) = (vec![0.0; o.dim], vec![0.0; o.dim]);
        for (key, score) in keys.iter().zip(&scores) {
            let weight = (score - max).exp() / sum;
            let v = row(&self.v, head / group, *key);
            for ((out, size), v) in out.iter_mut().zip(&mut size).zip(v) {
                *out += weight * v;
                *size += weight * v.abs();
            }
        }
        let log_sum = if keys.is_empty() { f64::NEG_INFINITY } else { max + sum.ln() };
        Wanted { out, size, log_sum }
    }

    /// Runs a kernel on masks in a format, twice, and requires equal bits.
    pub fn run(
        &self,
        context: &Context,
        format: &str,
        variant: Option<&str>,
    ) -> (Vec<T>, Vec<f32>) {
        let masks: Vec<SparseTensor<T>> = self.masks(context, format);
        let masks: Vec<&SparseTensor<T>> = masks.iter().collect();
        let o = &self.options;
        let attention = SparseAttention::with_variant(context, &masks, o, variant).unwrap();
        assert_eq!(attention.variant(), variant.unwrap_or("cpu"));
        let gap = T::from_f64(f64::NAN);
        let strided = |dense: &Dense<T>| -> Tensor<T> {
            context.upload_strided(dense, o.dim + 8, gap).unwrap()
        };
        let (q, k, v) = (strided(&self.q), strided(&self.k), strided(&self.v));
        let poison = Dense::from_fn(self.q.shape().to_vec(), |_| gap).unwrap();
        let logs = [o.heads, self.patterns[0].rows()];
        let run = || {
            let mut out = strided(&poison);
            let mut log_sum = context.zeros::<f32>(&logs).unwrap();
            let operands = [&q, &k, &v];
            finish(context, |stream| {
                attention.forward(operands, &mut out, Some(&mut log_sum), stream)
            });
            for row in out.to_storage().unwrap().chunks(o.dim + 8) {
                assert!(row[o.dim..].iter().all(|x| x.to_f64().is_nan()), "guards");
            }
            (
                out.to_dense().unwrap().values().to_vec(),
                log_sum.to_dense().unwrap().values().to_vec(),
            )
        };
        let (first, second) = (run(), run());
        assert_eq!(bits(&first.0), bits(&second.0));
        assert_eq!(bits(&first.1), bits(&second.1));
        first
    }

    pub fn masks(&self, context: &Context, format: &str) -> Vec<SparseTensor<T>> {
        let mask = |p: &CsrPattern| {
            let mask = csr::<T>(p.clone()).convert(format.parse().unwrap()).unwrap();
            context.upload(mask).unwrap()
        };
        self.patterns.iter().map(mask).collect()
    }

    /// Compares every kernel with the reference.
    pub fn check(&self, context: &Context, format: &str) {
        let o = &self.options;
        for variant in variants::<T>(context, o.dim) {
            let (out, log_sum) = self.run(context, format, variant);
            let rows = self.patterns[0].rows();
            for (row, (out, log)) in out.chunks(o.dim).zip(log_sum).enumerate() {
                let (head, query) = (row / rows, row % rows);
                let wanted = self.wanted(head, query);
                let what = (T::NAME, variant, format, o, rows, head, query);
                let near = (f64::from(log) - wanted.log_sum).abs() <= 1e-4;
                assert!(
                    near || f64::from(log) == wanted.log_sum,
                    "{what:?}: {log}, {}",
                    wanted.log_sum
                );
                for (i, x) in out.iter().enumerate() {
                    let (w, size) = (wanted.out[i], wanted.size[i]);
                    // Weights and output are rounded to the element type; scores and sums are in f32.
                    let bound = roundoff::<T>() * (w.abs() + 1.5 * size) + 2e-5;
                    assert!((x.to_f64() - w).abs() <= bound, "{what:?} {i}: {x}, expected {w}");
                }
            }
        }
    }
}

pub fn bits<T: bytemuck::NoUninit>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

fn roundoff<T: Scalar>() -> f64 {
    match T::NAME {
        "f16" => 0.5f64.powi(11),
        "bf16" => 0.5f64.powi(8),
        _ => 0.5f64.powi(24),
    }
}
