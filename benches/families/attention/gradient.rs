//! Gradient of attention at the nonzeros of Sputnik's mask, next to the forward run of the same case: scores, softmax,
//! its gradient, and three products with the mask's nonzeros. Rates count five products at the nonzeros. Every element
//! is checked against the CPU.

use super::entries::{Entries, mask};
use super::{Shape, drawn, options};
use crate::prelude::*;
use einsparse::Stream;
use einsparse::ops::AttentionGradient;

pub const OP: &str = "attention_gradient";

/// Name; heads, extent, elements of a query.
const CASES: &[(&str, Shape)] = &[
    ("attention-4096-h8", [8, 4096, 64]),
    ("attention-12288-h1", [1, 12_288, 128]),
    ("attention-12288-h8", [8, 12_288, 128]),
];

pub fn run(bench: &Bench<'_>) -> Result<()> {
    for &(name, shape) in CASES {
        measured::<bf16>(&bench.anew()?, name, shape, 0.5f64.powi(5))?;
        measured::<f16>(&bench.anew()?, name, shape, 0.5f64.powi(8))?;
        if shape[1] == 4096 {
            measured::<f32>(&bench.anew()?, name, shape, 1e-5)?;
        }
    }
    Ok(())
}

/// Gradients of queries, keys and values in this context, with their operator and operands.
struct Step<T: Scalar> {
    gradient: AttentionGradient<T>,
    operands: [Tensor<T>; 4],
    out: [Tensor<T>; 3],
    nnz: usize,
}

impl<T: Scalar> Step<T> {
    fn new(context: &Context, shape: Shape, host: &[Dense<T>; 4]) -> Result<Self> {
        let (pattern, causal) = mask::<T>(shape[1], Entries::Band(0.05))?;
        let nnz = pattern.values().len();
        let mask = context.upload(pattern)?;
        let gradient = AttentionGradient::new(context, &[&mask], &options(shape, causal))?;
        let upload = |dense: &Dense<T>| context.upload_dense(dense);
        let nan = Dense::from_fn(shape.to_vec(), |_| T::from_f64(f64::NAN))?;
        let [q, k, v, from] = host;
        Ok(Step {
            gradient,
            operands: [upload(q)?, upload(k)?, upload(v)?, upload(from)?],
            out: [upload(&nan)?, upload(&nan)?, upload(&nan)?],
            nnz,
        })
    }

    fn run(&mut self, stream: &Stream) -> Result<()> {
        let [q, k, v, from] = &self.operands;
        let [dq, dk, dv] = &mut self.out;
        let gradients = [dq, dk, dv];
        Ok((self.gradient).backward([q, k, v], from, gradients, stream)?)
    }
}

/// `bound`: max allowed difference, relative to the max element.
fn measured<T: Scalar>(bench: &Bench<'_>, name: &str, shape: Shape, bound: f64) -> Result<()> {
    let [heads, extent, dim] = shape;
    let host = drawn::<T, 4>(shape)?;
    let (mut step, prepare_ms) = timed(|| Step::new(&bench.context, shape, &host))?;
    let times = bench.measure(|| step.run(&bench.stream))?;
    let cpu = Context::cpu();
    let mut wanted = Step::new(&cpu, shape, &host)?;
    wanted.run(&cpu.stream()?)?;
    let mut worst = 0f64;
    for (found, wanted) in step.out.iter().zip(&wanted.out) {
        worst = worst.max(error(found, wanted)?);
    }
    let nnz = step.nnz;
    let row = Row::new(OP, name, [extent, extent, dim * heads], nnz, T::DTYPE.name())
        .ours(step.gradient.variants().join("+"))
        .timed(&times)
        .flops(10.0 * (nnz * dim * heads) as f64)
        .prepared(prepare_ms, step.gradient.workspace_bytes());
    let note = format!("err {worst:.1e} of the largest");
    bench.add(row.judged(worst <= bound, note))
}

/// Max difference relative to the max element; infinite if one is NaN.
fn error<T: Scalar>(found: &Tensor<T>, wanted: &Tensor<T>) -> Result<f64> {
    let (found, wanted) = (found.to_dense()?, wanted.to_dense()?);
    let sizes = wanted.values().iter().map(|x| x.to_f64().abs());
    let size = sizes.fold(0f64, f64::max);
    let pairs = found.values().iter().zip(wanted.values());
    let differences = pairs.map(|(found, wanted)| (found.to_f64() - wanted.to_f64()).abs());
    Ok(differences.fold(0f64, worse) / size)
}
