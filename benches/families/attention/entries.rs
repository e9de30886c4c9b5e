//! Attention at the entries of a mask: Sputnik's (a causal band and a share of what is in front of it), the band alone, blocks,
//! and everything below the diagonal, which is what dense kernels compute.
//!
//! `m` = `k` are queries and keys of a head, `n` is the elements of a query times the heads; rates count both products at the
//! entries. A sample of queries is checked in f64.

use crate::device::{Gpu, Result};
use crate::families::softmax;
use crate::problems::{Dtype, SEED};
use crate::record::{Recorder, Row};
use crate::timing::{Effort, measure};
use einsparse::formats::{AnySparse, Bsr, BsrPattern, Csr, bf16, f16};
use einsparse::formats::{Dense, generate};
use einsparse::ops::{AttentionOptions, SparseAttention};
use einsparse::registry::{Operation, Scalar, kernels};
use einsparse::{Context, Stream, Tensor};
use std::fmt::Display;
use std::time::Instant;

/// Queries whose output is checked, of each head.
const SAMPLE: usize = 48;
const BAND: usize = 256;
/// Of what is in front of the band (Sputnik, arXiv 2006.10901, section 7.4).
const SHARE: f64 = 0.05;

/// Where the entries are.
#[derive(Clone, Copy)]
pub enum Entries {
    /// A causal band, and a share of what is in front of it.
    Band(f64),
    /// Blocks of 64 with this density.
    Blocks(f64),
    /// Up to the diagonal.
    Causal,
}

/// Name, extent, heads, elements of a query, entries.
const CASES: &[(&str, usize, usize, usize, Entries)] = &[
    ("attention-12288-h1", 12_288, 1, 128, Entries::Band(SHARE)),
    ("attention-12288-h8", 12_288, 8, 128, Entries::Band(SHARE)),
    ("band-12288-h1", 12_288, 1, 128, Entries::Band(0.0)),
    ("band-12288-h8", 12_288, 8, 128, Entries::Band(0.0)),
    ("attention-4096-h8", 4096, 8, 64, Entries::Band(SHARE)),
    ("causal-12288-h1", 12_288, 1, 128, Entries::Causal),
    ("causal-12288-h8", 12_288, 8, 128, Entries::Causal),
    (
        "block64-d0.1-12288-h8",
        12_288,
        8,
        128,
        Entries::Blocks(0.1),
    ),
];

/// Measures every case by every kernel that fits.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    let mut wrong = Vec::new();
    for &(name, extent, heads, dim, entries) in CASES {
        let case = (name, extent, heads, dim, entries);
        if !measured::<bf16>(gpu, effort, recorder, case, Dtype::Bf16)? {
            wrong.push(format!("{name} bf16"));
        }
        let f16_too = matches!(entries, Entries::Band(share) if share > 0.0);
        if f16_too && !measured::<f16>(gpu, effort, recorder, case, Dtype::F16)? {
            wrong.push(format!("{name} f16"));
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!("wrong: {}", wrong.join(", "))),
    }
}

/// The mask, and what is hidden above the diagonal.
pub fn mask<T: Scalar>(extent: usize, entries: Entries) -> Result<(AnySparse<T>, Option<i64>)> {
    let blocks = |pattern: BsrPattern| {
        let values = vec![T::ONE; pattern.columns().len() * 64 * 64];
        Bsr::new(pattern, values).map(AnySparse::from).map_err(text)
    };
    match entries {
        Entries::Band(share) => {
            let pattern = softmax::attention(extent, BAND, share).map_err(text)?;
            let values = vec![T::ONE; pattern.columns().len()];
            let csr = Csr::new(pattern, values).map_err(text)?;
            Ok((AnySparse::from(csr), None))
        }
        Entries::Blocks(density) => {
            let pattern = generate::blocks(extent, extent, (64, 64), density, SEED);
            Ok((blocks(pattern.map_err(text)?)?, None))
        }
        Entries::Causal => {
            let side = extent / 64;
            let offsets = (0..=side).map(|row| (row * (row + 1) / 2) as u32).collect();
            let columns = (0..side).flat_map(|row| 0..=row as u32).collect();
            let pattern = BsrPattern::new(extent, extent, (64, 64), offsets, columns);
            Ok((blocks(pattern.map_err(text)?)?, Some(0)))
        }
    }
}

/// Standard normal values, `[heads, extent, dim]`.
pub fn values<T: Scalar>(shape: [usize; 3], seed: u64) -> Result<Dense<T>> {
    let count = shape.iter().product();
    let values = generate::random_values::<T>(count, SEED + seed);
    Dense::new(shape.to_vec(), values).map_err(text)
}

fn measured<T: Scalar>(
    gpu: &Gpu,
    effort: Effort,
    recorder: &mut Recorder,
    (name, extent, heads, dim, entries): (&str, usize, usize, usize, Entries),
    dtype: Dtype,
) -> Result<bool> {
    let context = Context::cuda(0).map_err(text)?;
    let (pattern, causal) = mask::<T>(extent, entries)?;
    let keys = keys_of(&pattern, causal)?;
    let nnz: usize = keys.iter().map(Vec::len).sum();
    let mask = context.upload(pattern).map_err(text)?;
    let shape = [heads, extent, dim];
    let host = [1, 2, 3].map(|seed| values::<T>(shape, seed));
    let [q, k, v] = host;
    let host = [q?, k?, v?];
    let upload = |dense: &Dense<T>| context.upload_dense(dense).map_err(text);
    let on_device = [upload(&host[0])?, upload(&host[1])?, upload(&host[2])?];
    let options = AttentionOptions {
        heads,
        dim,
        causal,
        ..AttentionOptions::default()
    };
    let fits = |row: &&einsparse::kernels::table::Row| {
        row.operation == Operation::Attention
            && row.dtype == T::DTYPE
            && row.columns as usize == dim
    };
    // SAFETY: the bench's stream belongs to the primary context and outlives this function.
    let stream = unsafe { Stream::from_raw(gpu.stream.cast()) };
    let mut all_right = true;
    for row in kernels().iter().filter(fits) {
        let nan = Dense::from_fn(shape.to_vec(), |_| T::from_f64(f64::NAN)).map_err(text)?;
        let mut out = context.upload_dense(&nan).map_err(text)?;
        let mut log_sum = context.zeros::<f32>(&[heads, extent]).map_err(text)?;
        let start = Instant::now();
        let attention = SparseAttention::with_variant(&context, &[&mask], &options, Some(row.name))
            .map_err(text)?;
        let prepare_ms = start.elapsed().as_secs_f64() * 1e3;
        let [q, k, v] = &on_device;
        let times = measure(gpu, effort, &mut || {
            attention
                .run([q, k, v], &mut out, Some(&mut log_sum), &stream)
                .map_err(text)
        })?;
        let error = error(&host, &keys, &out)?;
        let right = error <= 1.0;
        all_right &= right;
        let flops = 4.0 * (nnz * dim * heads) as f64;
        recorder.add(Row {
            op: "attention".into(),
            workload: name.into(),
            m: extent,
            k: extent,
            n: dim * heads,
            nnz,
            dtype: dtype.to_string(),
            engine: "einsparse".into(),
            variant: row.name.into(),
            ms: if right { times.cold } else { f64::NAN },
            ms_warm: Some(times.warm),
            gflops: Some(flops / times.cold / 1e6),
            prepare_ms: Some(prepare_ms),
            prepared_bytes: Some(attention.workspace_bytes()),
            zeros: "dense".into(),
            note: format!(
                "{}err {error:.2} of the bound",
                if right { "" } else { "WRONG: " }
            ),
            ..Row::default()
        })?;
    }
    Ok(all_right)
}

/// The keys of every query.
fn keys_of<T: Scalar>(pattern: &AnySparse<T>, causal: Option<i64>) -> Result<Vec<Vec<u32>>> {
    let [rows, columns] = [0, 1].map(|axis| pattern.shape()[axis]);
    let mut keys = vec![Vec::new(); rows];
    let mut fill = |row: usize, columns: std::ops::Range<u32>| {
        let limit = causal.map_or(u32::MAX, |offset| (row as i64 + offset + 1) as u32);
        keys[row].extend(columns.start..columns.end.min(limit));
    };
    let mut block = |row: u32, column: u32| {
        for inner in 0..64usize.min(rows - row as usize * 64) {
            let first = column * 64;
            let row = row as usize * 64 + inner;
            fill(row, first..(first + 64).min(columns as u32));
        }
    };
    match pattern {
        AnySparse::Csr(csr) => {
            for row in 0..rows {
                for &column in &csr.pattern().columns()[csr.pattern().row(row)] {
                    fill(row, column..column + 1);
                }
            }
        }
        AnySparse::Bsr(bsr) => {
            let (offsets, columns) = (bsr.pattern().offsets(), bsr.pattern().columns());
            for row in 0..offsets.len() - 1 {
                for &column in &columns[offsets[row] as usize..offsets[row + 1] as usize] {
                    block(row as u32, column);
                }
            }
        }
        other => return Err(format!("no keys of {}", other.format())),
    }
    Ok(keys)
}

/// Largest error of sampled queries, as a share of what rounding explains: weights and output are rounded to the element
/// type, sums are kept in f32.
fn error<T: Scalar>(host: &[Dense<T>; 3], keys: &[Vec<u32>], out: &Tensor<T>) -> Result<f64> {
    let out = out.to_dense().map_err(text)?;
    let &[heads, extent, dim] = out.shape() else {
        return Err("an output of three axes".into());
    };
    let roundoff = if T::NAME == "f16" { 11 } else { 8 };
    let roundoff = 0.5f64.powi(roundoff);
    let mut worst = 0f64;
    for head in 0..heads {
        for i in 0..SAMPLE {
            let query = (i * extent / SAMPLE + i * 37 + head * 11) % extent;
            let row = |dense: &Dense<T>, row: usize| -> Vec<f64> {
                let at = (head * extent + row) * dim;
                dense.values()[at..at + dim]
                    .iter()
                    .map(|x| x.to_f64())
                    .collect()
            };
            let q = row(&host[0], query);
            let scores: Vec<f64> = keys[query]
                .iter()
                .map(|&key| {
                    let k = row(&host[1], key as usize);
                    let dot: f64 = q.iter().zip(&k).map(|(q, k)| q * k).sum();
                    dot / (dim as f64).sqrt()
                })
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            let (mut wanted, mut size) = (vec![0.0; dim], vec![0.0; dim]);
            for (score, &key) in scores.iter().zip(&keys[query]) {
                let weight = (score - max).exp() / sum;
                for ((w, s), v) in wanted
                    .iter_mut()
                    .zip(&mut size)
                    .zip(row(&host[2], key as usize))
                {
                    *w += weight * v;
                    *s += weight * v.abs();
                }
            }
            for ((w, s), found) in wanted.iter().zip(&size).zip(row(&out, query)) {
                let bound = 2.0 * roundoff * (w.abs() + s) + 1e-5;
                let error = (found - w).abs() / bound;
                worst = if error.is_nan() {
                    f64::INFINITY
                } else {
                    worst.max(error)
                };
            }
        }
    }
    Ok(worst)
}

fn text(error: impl Display) -> String {
    error.to_string()
}
