//! Attention of 16,384 queries with a window and global tokens (Longformer, arXiv 2004.05150), with vertical and slash lines (MInference, arXiv
//! 2407.02490), and with everything up to the diagonal, which is what dense kernels compute: the masks in closed form, and as
//! flags whose work list is made on the GPU inside the time.
//!
//! Columns as in `attention`. Recorded as operation `attention`; a sample of queries is checked in f64.

use crate::device::{Gpu, Result};
use crate::families::attention::entries::values;
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::formats::{Dense, bf16};
use einsparse::ops::{
    AttentionMask, AttentionOptions, DynamicAttention, MaskTensors, SparseAttention,
};
use einsparse::{Context, Stream, Tensor};
use std::fmt::Display;
use std::time::Instant;

const EXTENT: usize = 16_384;
const HEADS: usize = 8;
const DIM: usize = 128;
/// Tokens of the window, half of them on either side; tokens with global attention, the first ones.
const WINDOW: usize = 512;
const GLOBALS: usize = 64;
/// Queries whose output is checked, of each head.
const SAMPLE: usize = 24;

/// A mask, in closed form, as flags, and entry by entry.
struct Case {
    name: &'static str,
    mask: AttentionMask,
    columns: Vec<usize>,
    rows: Vec<usize>,
    /// Keys minus queries.
    diagonals: Vec<i64>,
    causal: bool,
}

/// 16 runs of 16 columns, the first of them the first keys, and the distances 0 to 511 and 8 runs of 64 further away.
fn vertical_slash() -> (Vec<usize>, Vec<usize>) {
    let columns = (0..16).flat_map(|i| (0..16).map(move |j| i * 1008 + j));
    let far = (1..=8).flat_map(|i| (0..64).map(move |j| 512 + i * 1700 + j));
    (columns.collect(), (0..512).chain(far).collect())
}

fn cases() -> Vec<Case> {
    let half = WINDOW / 2;
    let (columns, distances) = vertical_slash();
    vec![
        Case {
            name: "causal-16384-h8",
            mask: AttentionMask::Causal,
            columns: Vec::new(),
            rows: (0..EXTENT).collect(),
            diagonals: Vec::new(),
            causal: true,
        },
        Case {
            name: "window-global-16384-h8",
            mask: AttentionMask::WindowGlobal {
                before: half,
                after: half,
                globals: (0..GLOBALS).collect(),
            },
            columns: (0..GLOBALS).collect(),
            rows: (0..GLOBALS).collect(),
            diagonals: (-(half as i64)..=half as i64).collect(),
            causal: false,
        },
        Case {
            name: "vertical-slash-16384-h8",
            diagonals: distances.iter().map(|&d| -(d as i64)).collect(),
            mask: AttentionMask::VerticalSlash {
                columns: columns.clone(),
                diagonals: distances,
            },
            columns,
            rows: Vec::new(),
            causal: true,
        },
    ]
}

/// The flags of a case, `true` where they are set.
struct Flags {
    columns: Vec<bool>,
    rows: Vec<bool>,
    diagonals: Vec<bool>,
}

impl Case {
    fn flags(&self) -> Flags {
        let mut flags = Flags {
            columns: vec![false; EXTENT],
            rows: vec![false; EXTENT],
            diagonals: vec![false; 2 * EXTENT - 1],
        };
        self.columns.iter().for_each(|&c| flags.columns[c] = true);
        self.rows.iter().for_each(|&r| flags.rows[r] = true);
        let number = |d: i64| (d + EXTENT as i64 - 1) as usize;
        self.diagonals
            .iter()
            .for_each(|&d| flags.diagonals[number(d)] = true);
        flags
    }

    /// The keys of a query.
    fn keys(&self, flags: &Flags, query: usize) -> Vec<usize> {
        let end = if self.causal { query + 1 } else { EXTENT };
        let there = |&key: &usize| {
            flags.rows[query] || flags.columns[key] || flags.diagonals[key + EXTENT - 1 - query]
        };
        (0..end).filter(there).collect()
    }
}

/// Operands on the host and on the GPU.
struct Operands {
    host: [Dense<bf16>; 3],
    there: [Tensor<bf16>; 3],
}

/// Measures every case.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    let shape = [HEADS, EXTENT, DIM];
    let host = [values(shape, 1)?, values(shape, 2)?, values(shape, 3)?];
    let upload = |dense: &Dense<bf16>| context.upload_dense(dense).map_err(text);
    let there = [upload(&host[0])?, upload(&host[1])?, upload(&host[2])?];
    let operands = Operands { host, there };
    for case in cases() {
        measured(gpu, effort, recorder, &context, &case, &operands)?;
    }
    Ok(())
}

fn measured(
    gpu: &Gpu,
    effort: Effort,
    recorder: &mut Recorder,
    context: &Context,
    case: &Case,
    operands: &Operands,
) -> Result<()> {
    let flags = case.flags();
    let nnz: usize = (0..EXTENT)
        .map(|query| case.keys(&flags, query).len())
        .sum();
    let options = AttentionOptions {
        heads: HEADS,
        dim: DIM,
        ..AttentionOptions::default()
    };
    // SAFETY: the bench's stream belongs to the primary context and outlives this function.
    let stream = unsafe { Stream::from_raw(gpu.stream.cast()) };
    let [q, k, v] = &operands.there;
    let nan = Dense::from_fn(vec![HEADS, EXTENT, DIM], |_| bf16::NAN).map_err(text)?;
    let mut out = context.upload_dense(&nan).map_err(text)?;
    let row = |times: Times, error: f64, said: &str| Row {
        op: "attention".into(),
        workload: case.name.into(),
        m: EXTENT,
        k: EXTENT,
        n: DIM * HEADS,
        nnz,
        dtype: "bf16".into(),
        engine: "einsparse".into(),
        ms: if error <= 1.0 { times.cold } else { f64::NAN },
        ms_warm: Some(times.warm),
        gflops: Some(4.0 * (nnz * DIM * HEADS) as f64 / times.cold / 1e6),
        zeros: "dense".into(),
        note: format!(
            "{}{said}; err {error:.2} of the bound",
            if error <= 1.0 { "" } else { "WRONG: " }
        ),
        ..Row::default()
    };
    let start = Instant::now();
    let mask = std::slice::from_ref(&case.mask);
    let attention = SparseAttention::<bf16>::structured(context, [EXTENT; 2], mask, &options);
    let attention = attention.map_err(text)?;
    let prepare = start.elapsed().as_secs_f64() * 1e3;
    let times = measure(gpu, effort, &mut || {
        attention
            .run([q, k, v], &mut out, None, &stream)
            .map_err(text)
    })?;
    let error = error(case, &flags, operands, &out)?;
    recorder.add(Row {
        variant: attention.variant().into(),
        prepare_ms: Some(prepare),
        prepared_bytes: Some(attention.workspace_bytes()),
        ..row(times, error, "mask in closed form")
    })?;
    out.write(&nan).map_err(text)?;
    flagged(gpu, effort, context, case, operands, &mut out, &stream).and_then(|(own, times)| {
        let error = self::error(case, &flags, operands, &out)?;
        recorder.add(Row {
            variant: format!("{} from flags", own.variant()),
            prepared_bytes: Some(own.workspace_bytes()),
            ..row(times, error, "work list made on the GPU inside the time")
        })
    })
}

/// The same from flags.
fn flagged(
    gpu: &Gpu,
    effort: Effort,
    context: &Context,
    case: &Case,
    operands: &Operands,
    out: &mut Tensor<bf16>,
    stream: &Stream,
) -> Result<(DynamicAttention<bf16>, Times)> {
    let flags = case.flags();
    let upload = |set: &[bool]| {
        let values = set.iter().map(|&flag| i8::from(flag)).collect();
        let dense = Dense::new(vec![1, set.len()], values).map_err(text)?;
        context.upload_dense(&dense).map_err(text)
    };
    let columns = upload(&flags.columns)?;
    let rows = upload(&flags.rows)?;
    let diagonals = upload(&flags.diagonals)?;
    let mask = MaskTensors {
        columns: Some(&columns),
        rows: Some(&rows),
        diagonals: Some(&diagonals),
        ..MaskTensors::default()
    };
    let options = AttentionOptions {
        heads: HEADS,
        dim: DIM,
        causal: case.causal.then_some(0),
        ..AttentionOptions::default()
    };
    let attention = DynamicAttention::new(context, [EXTENT; 2], 1, &options).map_err(text)?;
    let [q, k, v] = &operands.there;
    let times = measure(gpu, effort, &mut || {
        let run = attention.run([q, k, v], &mask, out, None, stream);
        run.map_err(text)
    })?;
    Ok((attention, times))
}

/// Largest error of sampled queries, as a share of what rounding explains.
fn error(case: &Case, flags: &Flags, operands: &Operands, out: &Tensor<bf16>) -> Result<f64> {
    let out = out.to_dense().map_err(text)?;
    let row = |dense: &Dense<bf16>, head: usize, row: usize| -> Vec<f64> {
        let at = (head * EXTENT + row) * DIM;
        let own = &dense.values()[at..at + DIM];
        own.iter().map(|x| f64::from(x.to_f32())).collect()
    };
    let roundoff = 0.5f64.powi(8);
    let mut worst = 0f64;
    for (head, i) in (0..HEADS).flat_map(|head| (0..SAMPLE).map(move |i| (head, i))) {
        let query = (i * EXTENT / SAMPLE + i * 37 + head * 11) % EXTENT;
        let q = row(&operands.host[0], head, query);
        let keys = case.keys(flags, query);
        let score = |&key: &usize| {
            let k = row(&operands.host[1], head, key);
            let dot: f64 = q.iter().zip(&k).map(|(q, k)| q * k).sum();
            dot / (DIM as f64).sqrt()
        };
        let scores: Vec<f64> = keys.iter().map(score).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let (mut wanted, mut size) = (vec![0.0; DIM], vec![0.0; DIM]);
        for (score, &key) in scores.iter().zip(&keys) {
            let weight = (score - max).exp() / sum;
            let v = row(&operands.host[2], head, key);
            for ((w, s), v) in wanted.iter_mut().zip(&mut size).zip(v) {
                *w += weight * v;
                *s += weight * v.abs();
            }
        }
        for ((w, s), found) in wanted.iter().zip(&size).zip(row(&out, head, query)) {
            let bound = 2.0 * roundoff * (w.abs() + s) + 1e-5;
            let share = (found - w).abs() / bound;
            worst = if share.is_nan() {
                f64::INFINITY
            } else {
                worst.max(share)
            };
        }
    }
    Ok(worst)
}

fn text(error: impl Display) -> String {
    error.to_string()
}
