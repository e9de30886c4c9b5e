//! Operands of attention over a cache in host memory, and the expected results.

use crate::support::Rng;
use crate::support::dense::{nan, strided};
use crate::support::runs::finish;
use einsparse::formats::Dense;
use einsparse::ops::{AttentionOptions, CachedAttention};
use einsparse::registry::Scalar;
use einsparse::{Context, Result, Stream, Tensor};

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub batch: usize,
    pub heads: usize,
    pub key_heads: usize,
    pub dim: usize,
    pub capacity: usize,
}

impl Shape {
    pub fn options(self) -> AttentionOptions {
        AttentionOptions {
            heads: self.heads,
            key_heads: Some(self.key_heads),
            dim: self.dim,
            ..AttentionOptions::default()
        }
    }
}

/// Operands in host memory. Past each length, keys and values are NaN.
pub struct Case<T> {
    pub shape: Shape,
    pub lengths: Vec<i32>,
    pub q: Dense<T>,
    pub k: Dense<T>,
    pub v: Dense<T>,
    /// Keys and values that a step adds.
    fresh: [Dense<T>; 2],
}

/// Operands in a context.
pub struct There<T: Scalar> {
    q: Tensor<T>,
    cache: [Tensor<T>; 2],
    fresh: [Tensor<T>; 2],
    pub out: Tensor<T>,
}

impl<T: Scalar> There<T> {
    pub fn append(
        &mut self,
        attention: &CachedAttention<T>,
        lengths: &Tensor<i32>,
        stream: &Stream,
    ) -> Result<()> {
        let cache = self.cache.each_mut();
        let new = self.fresh.each_ref();
        attention.append(&self.q, new, cache, lengths, &mut self.out, stream)
    }

    fn forward(
        &mut self,
        attention: &CachedAttention<T>,
        lengths: &Tensor<i32>,
        stream: &Stream,
    ) -> Result<()> {
        let cache = self.cache.each_ref();
        attention.forward(&self.q, cache, lengths, &mut self.out, stream)
    }
}

pub fn bits<T: bytemuck::NoUninit>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

impl<T: Scalar> Case<T> {
    pub fn new(shape: Shape, lengths: Vec<i32>, seed: u64) -> Self {
        let mut rng = Rng(seed);
        let Shape { batch, heads, key_heads, dim, capacity } = shape;
        let pairs = batch * key_heads;
        let mut row = |there: bool| -> Vec<T> {
            let one = |_| match there {
                true => T::from_f64(2.0 * rng.unit()),
                false => T::from_f64(f64::NAN),
            };
            (0..dim).map(one).collect()
        };
        let fresh = [0, 1].map(|_| {
            let values = (0..pairs).flat_map(|_| row(true)).collect();
            Dense::new(vec![batch, key_heads, dim], values).unwrap()
        });
        let q = (0..batch * heads).flat_map(|_| row(true)).collect();
        let mut cache = || {
            let rows = (0..pairs).flat_map(|pair| (0..capacity).map(move |key| (pair, key)));
            let there = |(pair, key): (usize, usize)| (key as i32) < lengths[pair / key_heads];
            let values = rows.flat_map(|place| row(there(place))).collect();
            Dense::new(vec![batch, key_heads, capacity, dim], values).unwrap()
        };
        let (k, v) = (cache(), cache());
        Case { q: Dense::new(vec![batch, heads, dim], q).unwrap(), shape, lengths, k, v, fresh }
    }

    pub fn lengths_dense(&self) -> Dense<i32> {
        Dense::new([self.shape.batch], self.lengths.clone()).unwrap()
    }

    /// Returns the number of keys of a sequence that count.
    fn length(&self, sequence: usize) -> usize {
        let length = usize::try_from(self.lengths[sequence]).unwrap_or(0);
        length.min(self.shape.capacity)
    }

    pub fn upload(&self, context: &Context) -> There<T> {
        let gap = T::from_f64(f64::NAN);
        let strided = |dense: &Dense<T>| strided(context, dense, self.shape.dim + 8, gap);
        There {
            q: strided(&self.q),
            cache: [strided(&self.k), strided(&self.v)],
            fresh: self.fresh.each_ref().map(strided),
            out: strided(&nan(self.q.shape())),
        }
    }

    /// Writes the rows that a step adds to the end of each sequence.
    pub fn add_fresh(&mut self) {
        let Shape { key_heads, dim, capacity, batch, .. } = self.shape;
        for pair in 0..batch * key_heads {
            let Some(last) = self.length(pair / key_heads).checked_sub(1) else {
                continue;
            };
            let to = (pair * capacity + last) * dim;
            for (cache, fresh) in [&mut self.k, &mut self.v].into_iter().zip(&self.fresh) {
                let row = &fresh.values()[pair * dim..][..dim];
                cache.values_mut()[to..][..dim].copy_from_slice(row);
            }
        }
    }

    /// Runs twice and requires equal bits. The second run adds the last rows to a cache without them. That cache must
    /// then contain them and be otherwise unchanged.
    pub fn run(&self, context: &Context) -> Vec<T> {
        let Shape { batch, capacity, .. } = self.shape;
        let options = self.shape.options();
        let attention = CachedAttention::<T>::new(context, [batch, capacity], &options).unwrap();
        let lengths = context.upload_dense(&self.lengths_dense()).unwrap();
        let mut there = self.upload(context);
        finish(context, |stream| there.forward(&attention, &lengths, stream));
        let first = self.guarded(&there);
        there = self.upload(context);
        finish(context, |stream| there.forward(&attention, &lengths, stream));
        assert_eq!(bits(&first), bits(&self.guarded(&there)), "a second run");
        first
    }

    /// Returns the output; requires that nothing was written between its rows.
    fn guarded(&self, there: &There<T>) -> Vec<T> {
        let dim = self.shape.dim;
        for row in there.out.to_storage().unwrap().chunks(dim + 8) {
            assert!(row[dim..].iter().all(|x| x.to_f64().is_nan()), "guards");
        }
        there.out.to_dense().unwrap().values().to_vec()
    }

    /// Compares a run with the reference, and a step that adds the last rows with both.
    pub fn check(&self, context: &Context) {
        self.judge(&self.run(context));
        let mut grown = Case {
            q: self.q.clone(),
            k: self.k.clone(),
            v: self.v.clone(),
            fresh: self.fresh.clone(),
            lengths: self.lengths.clone(),
            shape: self.shape,
        };
        let mut there = grown.upload(context);
        grown.add_fresh();
        let wanted = grown.run(context);
        let Shape { batch, capacity, .. } = self.shape;
        let options = self.shape.options();
        let attention = CachedAttention::<T>::new(context, [batch, capacity], &options).unwrap();
        let lengths = context.upload_dense(&self.lengths_dense()).unwrap();
        finish(context, |stream| there.append(&attention, &lengths, stream));
        assert_eq!(bits(&wanted), bits(&self.guarded(&there)), "appended");
        grown.judge(&wanted);
        for (cache, wanted) in there.cache.iter().zip([&grown.k, &grown.v]) {
            let found = cache.to_dense().unwrap();
            let same = |(a, b): (&T, &T)| a == b || (a.to_f64().is_nan() && b.to_f64().is_nan());
            let all = found.values().iter().zip(wanted.values());
            assert!(all.clone().all(same), "the cache of {:?}", self.shape);
        }
    }

    /// Returns the expected output of a query, and the sum of magnitudes that bounds its error.
    fn wanted(&self, sequence: usize, head: usize) -> (Vec<f64>, Vec<f64>) {
        let Shape { heads, key_heads, dim, capacity, .. } = self.shape;
        let row = |dense: &Dense<T>, row: usize| -> Vec<f64> {
            let row = &dense.values()[row * dim..][..dim];
            row.iter().map(|x| x.to_f64()).collect()
        };
        let pair = sequence * key_heads + head / (heads / key_heads);
        let q = row(&self.q, sequence * heads + head);
        let keys = pair * capacity..pair * capacity + self.length(sequence);
        let score = |key: usize| {
            let dot: f64 = q.iter().zip(row(&self.k, key)).map(|(q, k)| q * k).sum();
            dot / (dim as f64).sqrt()
        };
        let scores: Vec<f64> = keys.clone().map(score).collect();
        let max = scores.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let (mut out, mut size) = (vec![0.0; dim], vec![0.0; dim]);
        for (key, score) in keys.zip(&scores) {
            let weight = (score - max).exp() / sum;
            for ((out, size), v) in out.iter_mut().zip(&mut size).zip(row(&self.v, key)) {
                *out += weight * v;
                *size += weight * v.abs();
            }
        }
        (out, size)
    }

    /// Compares every element with the reference.
    pub fn judge(&self, out: &[T]) {
        let Shape { heads, dim, .. } = self.shape;
        let roundoff = match T::NAME {
            "f16" => 0.5f64.powi(11),
            "bf16" => 0.5f64.powi(8),
            _ => 0.5f64.powi(24),
        };
        for (row, out) in out.chunks(dim).enumerate() {
            let (wanted, size) = self.wanted(row / heads, row % heads);
            for (i, x) in out.iter().enumerate() {
                // Weights and output are rounded to the element type; scores and sums are in f32.
                let bound = roundoff * (wanted[i].abs() + 1.5 * size[i]) + 2e-5;
                let near = (x.to_f64() - wanted[i]).abs() <= bound;
                let (shape, lengths) = (self.shape, &self.lengths);
                assert!(
                    near,
                    "{} {shape:?} {lengths:?} row {row} {i}: {x}, expected {}",
                    T::NAME,
                    wanted[i]
                );
            }
        }
    }
}
