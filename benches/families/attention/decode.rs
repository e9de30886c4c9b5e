//! Attention of one query per head over a cache of keys and values, as a generating model computes it for each token.
//!
//! `m` is the number of queries of all sequences, `k` the tokens of one sequence, `n` the elements of a query, `nnz`
//! the scores. Every key and value is read once, so the min time is their bytes at copy speed. The random rows of a
//! cache repeat. Some heads are checked in f64. The baseline is the faster of two PyTorch implementations, as a CUDA
//! graph.

use crate::peers::torch;
use crate::prelude::*;
use crate::record::Limits;
use einsparse::formats::generate;
use einsparse::ops::{AttentionOptions, CachedAttention};

pub const OP: &str = "attention_decode";
/// Number of random rows of the cache, a prime. All other rows repeat them.
const DRAWN: usize = 20_011;
/// Max bytes of a cache; larger cases are skipped.
const MOST_BYTES: usize = 20 << 30;
/// Heads whose output is checked.
const SAMPLE: usize = 6;

#[derive(Clone, Copy)]
struct Case {
    batch: usize,
    heads: usize,
    key_heads: usize,
    dim: usize,
    tokens: usize,
    /// Tokens for which the cache has capacity.
    capacity: usize,
}

impl Case {
    fn new(batch: usize, [heads, key_heads]: [usize; 2], dim: usize, tokens: usize) -> Self {
        Case { batch, heads, key_heads, dim, tokens, capacity: tokens }
    }

    fn name(&self) -> String {
        let Case { batch, heads, key_heads, tokens, capacity, .. } = self;
        let room = match capacity == tokens {
            true => String::new(),
            false => format!("-of-{capacity}"),
        };
        format!("cache-{tokens}{room}-b{batch}-h{heads}-k{key_heads}")
    }

    /// Rows of keys in the cache.
    fn rows(&self) -> usize {
        self.batch * self.key_heads * self.capacity
    }

    /// Bytes of the valid keys and values, of the queries and of the output.
    fn bytes(&self) -> f64 {
        let keys = self.batch * self.key_heads * self.tokens;
        ((2 * keys + 2 * self.batch * self.heads) * self.dim * 2) as f64
    }

    fn options(&self) -> AttentionOptions {
        AttentionOptions {
            heads: self.heads,
            key_heads: Some(self.key_heads),
            dim: self.dim,
            ..AttentionOptions::default()
        }
    }
}

pub fn run(bench: &Bench<'_>) -> Result<()> {
    for heads in [[32, 8], [32, 32]] {
        for batch in [1, 8, 64] {
            for tokens in [1024, 8192, 32_768] {
                measured::<bf16>(&bench.anew()?, Case::new(batch, heads, 128, tokens))?;
            }
        }
    }
    for case in [
        Case::new(8, [64, 8], 128, 8192),
        Case::new(8, [64, 8], 64, 8192),
        // The time of an almost empty cache depends only on its valid tokens.
        Case { capacity: 32_768, ..Case::new(64, [32, 8], 128, 1024) },
    ] {
        measured::<bf16>(&bench.anew()?, case)?;
    }
    measured::<f16>(&bench.anew()?, Case::new(8, [32, 8], 128, 8192))
}

/// Cache on the GPU. The random rows repeat.
fn cache<T: Scalar>(bench: &Bench<'_>, case: Case, drawn: &[T]) -> Result<Tensor<T>> {
    let piece: &[u8] = bytemuck::cast_slice(drawn);
    let buffer = Buffer::new(case.rows() * case.dim * 2)?;
    for from in (0..buffer.bytes).step_by(piece.len()) {
        buffer.write(from, &piece[..piece.len().min(buffer.bytes - from)])?;
    }
    let shape = [case.batch, case.key_heads, case.capacity, case.dim];
    let (address, rows) = (buffer.ptr, (&shape[..], case.dim));
    // SAFETY: the tensor owns the buffer, whose size is that of the shape, and no other code uses it.
    Ok(unsafe { Tensor::from_raw(&bench.context, address, rows, buffer)? })
}

fn measured<T: Scalar>(bench: &Bench<'_>, case: Case) -> Result<()> {
    if 2 * case.rows() * case.dim * 2 > MOST_BYTES {
        println!("{} left out: a cache of more than {MOST_BYTES} bytes", case.name());
        return Ok(());
    }
    let Case { batch, heads, key_heads, dim, tokens, capacity } = case;
    let random = |rows: usize, seed| generate::random_values::<T>(rows * dim, SEED + seed);
    let host = [random(DRAWN, 1), random(DRAWN, 2), random(batch * heads, 3)];
    let [mut k, mut v] = [cache(bench, case, &host[0])?, cache(bench, case, &host[1])?];
    let q = bench.tensor(&[batch, heads, dim], host[2].clone())?;
    let lengths = bench.tensor(&[batch], vec![tokens as i32; batch])?;
    let mut out = bench.poisoned::<T>(&[batch, heads, dim])?;
    let make = || CachedAttention::<T>::new(&bench.context, [batch, capacity], &case.options());
    let (attention, prepare_ms) = timed(|| Ok(make()?))?;
    let times =
        bench.measure(|| attention.forward(&q, [&k, &v], &lengths, &mut out, &bench.stream))?;
    let error = error(case, &host, &out)?;
    let row = |times: &Times| {
        let queries = batch * heads;
        let extents = [queries, tokens, dim];
        let row = Row::new(OP, case.name(), extents, queries * tokens, T::DTYPE.name());
        row.timed(times)
            .bytes(case.bytes())
            .limit(1e3 * case.bytes() / Limits::published().copy)
            .dense()
    };
    let own = row(&times).prepared(prepare_ms, attention.workspace_bytes());
    let note = format!("err {error:.2} of the bound");
    bench.add(own.ours(attention.variant()).judged(error <= 1.0, note))?;
    let new = [0, 1].map(|_| bench.zeros::<T>(&[batch, key_heads, dim]));
    let [new_k, new_v] = new;
    let new = [&new_k?, &new_v?];
    let times = bench.measure(|| {
        attention.append(&q, new, [&mut k, &mut v], &lengths, &mut out, &bench.stream)
    })?;
    let step = row(&times).ours(format!("{} append", attention.variant()));
    bench.add(step.note("adds a token"))?;
    drop((k, v));
    peer(case, T::NAME)
        .into_iter()
        .try_for_each(|(name, times)| bench.add(row(&times).by("torch", name).note("a CUDA graph")))
}

/// Fastest of PyTorch's implementations.
fn peer(case: Case, dtype: &str) -> Option<(String, Times)> {
    let Case { batch, heads, key_heads, dim, tokens, .. } = case;
    let asked = format!(
        r#"{{"batch": {batch}, "heads": [{heads}, {key_heads}], "dim": {dim}, "tokens": {tokens}, "dtype": "{dtype}"}}"#
    );
    let all = torch::measure("cached", &asked);
    all.into_iter().min_by(|a, b| a.1.cold.total_cmp(&b.1.cold))
}

/// Max error of some heads, over the error that rounding explains. Weights and output are rounded to the element type,
/// sums are kept in f32.
fn error<T: Scalar>(case: Case, host: &[Vec<T>; 3], out: &Tensor<T>) -> Result<f64> {
    let out = out.to_dense()?;
    let roundoff = 0.5f64.powi(if T::NAME == "f16" { 11 } else { 8 });
    let group = case.heads / case.key_heads;
    let queries = case.batch * case.heads;
    let row = |of: &[T], row: usize| -> Vec<f64> {
        let own = &of[row * case.dim..][..case.dim];
        own.iter().map(|x| x.to_f64()).collect()
    };
    let mut worst = 0f64;
    for i in 0..SAMPLE {
        let query = (i * queries / SAMPLE + i * 5) % queries;
        let q = row(&host[2], query);
        let first = query / group * case.capacity;
        let at = |key: usize| (first + key) % DRAWN;
        let score = |key: usize| {
            let dot: f64 = q.iter().zip(row(&host[0], at(key))).map(|(q, k)| q * k).sum();
            dot / (case.dim as f64).sqrt()
        };
        let scores: Vec<f64> = (0..case.tokens).map(score).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let mut wanted = vec![Sum::default(); case.dim];
        for (key, score) in scores.iter().enumerate() {
            let weight = (score - max).exp() / sum;
            let v = row(&host[1], at(key));
            wanted.iter_mut().zip(v).for_each(|(w, v)| w.add(weight * v));
        }
        for (w, found) in wanted.iter().zip(row(out.values(), query)) {
            let bound = 2.0 * roundoff * (w.value.abs() + w.size) + 1e-5;
            worst = worse(worst, (found - w.value).abs() / bound);
        }
    }
    Ok(worst)
}
