//! Attention of one query per head over a cache of keys and values, as a generating model computes it for each token.
//!
//! `m` is the number of queries of all sequences, `k` the tokens of one sequence, `n` the elements of a query, `nnz`
//! the scores. Every key and value is read once, so the min time is their bytes at copy speed. The random rows of a
//! cache repeat. Some heads are checked in f64. The baseline is the faster of two PyTorch implementations, as a CUDA
//! graph.

use super::worst_error;
use crate::prelude::*;
use crate::record::HBM;
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

    fn row<T: Scalar>(&self) -> Row {
        let (queries, keys) = (self.batch * self.heads, self.batch * self.key_heads * self.tokens);
        // Valid keys and values, queries and output.
        let bytes = ((2 * keys + 2 * queries) * self.dim * 2) as f64;
        let extents = [queries, self.tokens, self.dim];
        Row::new(OP, self.name(), extents, queries * self.tokens, T::DTYPE.name())
            .bytes(bytes)
            .limit(1e3 * bytes / HBM)
            .dense()
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
    let buffer = Buffer::repeated(drawn, case.rows() * case.dim * 2)?;
    let shape = [case.batch, case.key_heads, case.capacity, case.dim];
    let address = buffer.ptr;
    // SAFETY: the tensor owns the buffer, whose size is that of the shape, and no other code uses it.
    Ok(unsafe { Tensor::from_raw(&bench.context, address, &shape, case.dim, buffer)? })
}

fn measured<T: Scalar>(bench: &Bench<'_>, case: Case) -> Result<()> {
    if 2 * case.rows() * case.dim * 2 > MOST_BYTES {
        println!("{} left out: a cache of more than {MOST_BYTES} bytes", case.name());
        return Ok(());
    }
    let Case { batch, heads, key_heads, dim, tokens, capacity } = case;
    let host: [Vec<T>; 3] = [(DRAWN, 1), (DRAWN, 2), (batch * heads, 3)]
        .map(|(rows, seed)| values(rows * dim, seed, NORMAL));
    let [mut k, mut v] = [cache(bench, case, &host[0])?, cache(bench, case, &host[1])?];
    let q = bench.tensor(&[batch, heads, dim], host[2].clone())?;
    let lengths = bench.tensor(&[batch], vec![tokens as i32; batch])?;
    let mut out = bench.poisoned::<T>(&[batch, heads, dim])?;
    let options =
        AttentionOptions { heads, key_heads: Some(key_heads), dim, ..AttentionOptions::default() };
    let make = || CachedAttention::<T>::new(&bench.context, [batch, capacity], &options);
    let (attention, prepare_ms) = timed(|| Ok(make()?))?;
    let row = case.row::<T>();
    let own = row.clone().prepared(prepare_ms, attention.workspace_bytes());
    bench.checked(
        own.ours(attention.variant()),
        &mut out,
        |out| attention.forward(&q, [&k, &v], &lengths, out, &bench.stream),
        |out| error(case, &host, out),
    )?;
    let [new_k, new_v] = [0, 1].map(|_| bench.zeros::<T>(&[batch, key_heads, dim]));
    let new = [&new_k?, &new_v?];
    let step = row.clone().ours(format!("{} append", attention.variant())).note("adds a token");
    bench.time(step, || {
        attention.append(&q, new, [&mut k, &mut v], &lengths, &mut out, &bench.stream)
    })?;
    drop((k, v));
    let asked = format!(
        r#"{{"batch": {batch}, "heads": [{heads}, {key_heads}], "dim": {dim}, "tokens": {tokens}, "dtype": "{}"}}"#,
        T::NAME
    );
    bench.torch(row.note("a CUDA graph"), "cached", &asked)
}

/// Max error of some heads.
fn error<T: Scalar>(case: Case, [k, v, q]: &[Vec<T>; 3], out: &Tensor<T>) -> Result<f64> {
    let (group, queries) = (case.heads / case.key_heads, case.batch * case.heads);
    let rows = (0..SAMPLE).map(|i| {
        let query = (i * queries / SAMPLE + i * 5) % queries;
        let first = query / group * case.capacity;
        (query, (0..case.tokens).map(|key| (first + key) % DRAWN).collect())
    });
    worst_error([q, k, v], case.dim, out, rows)
}
