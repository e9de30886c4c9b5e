//! The gradient of attention at the entries of Sputnik's mask, beside the forward run of the same case: scores, softmax, its
//! gradient and three products with the mask's entries. Rates count five products at the entries. Every element is checked
//! against the CPU.

use crate::device::{Gpu, Result};
use crate::families::attention::entries::{Entries, mask, values};
use crate::problems::Dtype;
use crate::record::{Recorder, Row};
use crate::timing::{Effort, measure};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::ops::{AttentionGradient, AttentionOptions};
use einsparse::registry::Scalar;
use einsparse::{Context, Stream, Tensor};
use std::fmt::Display;
use std::time::Instant;

/// Name, extent, heads, elements of a query.
const CASES: &[(&str, usize, usize, usize)] = &[
    ("attention-4096-h8", 4096, 8, 64),
    ("attention-12288-h1", 12_288, 1, 128),
    ("attention-12288-h8", 12_288, 8, 128),
];

/// Measures every case.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    let mut wrong = Vec::new();
    for &case in CASES {
        let mut right = measured::<bf16>(gpu, effort, recorder, case, Dtype::Bf16)?;
        right &= measured::<f16>(gpu, effort, recorder, case, Dtype::F16)?;
        if case.1 == 4096 {
            right &= measured::<f32>(gpu, effort, recorder, case, Dtype::F32)?;
        }
        if !right {
            wrong.push(case.0);
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!("wrong: {}", wrong.join(", "))),
    }
}

/// Gradients of queries, keys and values in this context, and what made them.
struct Step<T: Scalar> {
    gradient: AttentionGradient<T>,
    operands: [Tensor<T>; 4],
    out: [Tensor<T>; 3],
}

impl<T: Scalar> Step<T> {
    fn new(
        context: &Context,
        (extent, heads, dim): (usize, usize, usize),
        host: &[Dense<T>; 4],
    ) -> Result<Self> {
        let (pattern, causal) = mask::<T>(extent, Entries::Band(0.05))?;
        let options = AttentionOptions {
            heads,
            dim,
            causal,
            ..AttentionOptions::default()
        };
        let mask = context.upload(pattern).map_err(text)?;
        let gradient = AttentionGradient::new(context, &[&mask], &options).map_err(text)?;
        let upload = |dense: &Dense<T>| context.upload_dense(dense).map_err(text);
        let nan = Dense::from_fn(vec![heads, extent, dim], |_| T::from_f64(f64::NAN));
        let nan = nan.map_err(text)?;
        let [q, k, v, from] = host;
        Ok(Step {
            gradient,
            operands: [upload(q)?, upload(k)?, upload(v)?, upload(from)?],
            out: [upload(&nan)?, upload(&nan)?, upload(&nan)?],
        })
    }

    fn run(&mut self, stream: &Stream) -> Result<()> {
        let [q, k, v, from] = &self.operands;
        let [dq, dk, dv] = &mut self.out;
        let run = self.gradient.run([q, k, v], from, [dq, dk, dv], stream);
        run.map_err(text)
    }
}

fn measured<T: Scalar>(
    gpu: &Gpu,
    effort: Effort,
    recorder: &mut Recorder,
    (name, extent, heads, dim): (&str, usize, usize, usize),
    dtype: Dtype,
) -> Result<bool> {
    let shape = [heads, extent, dim];
    let [a, b, c, d] = [1, 2, 3, 4].map(|seed| values::<T>(shape, seed));
    let host = [a?, b?, c?, d?];
    let context = Context::cuda(0).map_err(text)?;
    let start = Instant::now();
    let mut step = Step::new(&context, (extent, heads, dim), &host)?;
    let prepare_ms = start.elapsed().as_secs_f64() * 1e3;
    // SAFETY: the bench's stream belongs to the primary context and outlives this function.
    let stream = unsafe { Stream::from_raw(gpu.stream.cast()) };
    let times = measure(gpu, effort, &mut || step.run(&stream))?;
    let cpu = Context::cpu();
    let mut wanted = Step::new(&cpu, (extent, heads, dim), &host)?;
    wanted.run(&cpu.stream().map_err(text)?)?;
    let mut worst = 0f64;
    for (found, wanted) in step.out.iter().zip(&wanted.out) {
        worst = worst.max(error(found, wanted)?);
    }
    let bound = match dtype {
        Dtype::Bf16 => 0.5f64.powi(5),
        Dtype::F16 => 0.5f64.powi(8),
        _ => 1e-5,
    };
    let right = worst <= bound;
    let nnz = {
        let (pattern, _) = mask::<T>(extent, Entries::Band(0.05))?;
        pattern.values().len()
    };
    recorder.add(Row {
        op: "attention_gradient".into(),
        workload: name.into(),
        m: extent,
        k: extent,
        n: dim * heads,
        nnz,
        dtype: dtype.to_string(),
        engine: "einsparse".into(),
        variant: step.gradient.variants().join("+"),
        ms: if right { times.cold } else { f64::NAN },
        ms_warm: Some(times.warm),
        gflops: Some(10.0 * (nnz * dim * heads) as f64 / times.cold / 1e6),
        prepare_ms: Some(prepare_ms),
        prepared_bytes: Some(step.gradient.workspace_bytes()),
        note: format!(
            "{}err {worst:.1e} of the largest",
            if right { "" } else { "WRONG: " }
        ),
        ..Row::default()
    })?;
    Ok(right)
}

/// Largest difference as a share of the largest element; infinite where one is no number.
fn error<T: Scalar>(found: &Tensor<T>, wanted: &Tensor<T>) -> Result<f64> {
    let (found, wanted) = (
        found.to_dense().map_err(text)?,
        wanted.to_dense().map_err(text)?,
    );
    let size = wanted
        .values()
        .iter()
        .fold(0f64, |a, x| a.max(x.to_f64().abs()));
    let differences = found.values().iter().zip(wanted.values());
    let worst = differences.fold(0f64, |worst, (found, wanted)| {
        let difference = (found.to_f64() - wanted.to_f64()).abs();
        match difference.is_nan() {
            true => f64::INFINITY,
            false => worst.max(difference),
        }
    });
    Ok(worst / size)
}

fn text(error: impl Display) -> String {
    error.to_string()
}
