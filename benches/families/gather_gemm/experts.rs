//! Shared code of layers of experts.

use crate::prelude::*;
use einsparse::dynamic::Matrices;
use einsparse::nn::{Moe, MoeGradients, MoeInputs, MoeOptions};
use rayon::prelude::*;

/// Row of the products of every choice. `m` is the tokens, `k` their columns, `n` the hidden columns. `bytes` is the
/// bytes of an element times the number of experts that are met.
pub fn row(op: &str, workload: String, o: &MoeOptions, choices: usize, bytes: usize) -> Row {
    let extents = [o.tokens, o.model, o.hidden];
    let products = if o.gate.is_some() { 3 } else { 2 };
    let bytes = (products * bytes * o.model * o.hidden + 4 * o.tokens * o.model) as f64;
    Row::new(op, workload, extents, choices * o.model, Dtype::Bf16)
        .rated(Dtype::Bf16, 2.0 * (products * choices * o.model * o.hidden) as f64, bytes)
        .dense()
}

/// Number of experts that tokens are sent to.
pub fn met(chosen: &[i32], experts: usize) -> usize {
    (0..experts as i32).filter(|e| chosen.contains(e)).count()
}

/// Name of the distribution of choices.
pub fn law(zipf: bool) -> &'static str {
    if zipf { "zipf1" } else { "uniform" }
}

/// Note with the times of the parts of a layer.
pub fn parts([route, up, down]: [Times; 3]) -> String {
    format!(
        "routing {:.1}, first product {:.1}, second with scatter and sum {:.1} us by themselves",
        route.cold * 1e3,
        up.cold * 1e3,
        down.cold * 1e3
    )
}

/// Times a training step after the router, and returns the gradients of x and of the weights. Forward and backward run
/// alternately, because backward multiplies the hidden rows of its forward by the weights in place. The gradient of the
/// output is x.
pub fn step(
    bench: &Bench<'_>,
    layer: &mut Moe<bf16>,
    o: &MoeOptions,
    (x, choices, weights): (&Tensor<bf16>, &Tensor<i32>, &Tensor<f32>),
    [up, down]: [&Tensor<bf16>; 2],
) -> Result<(Times, Tensor<bf16>, Tensor<f32>)> {
    let stream = &bench.stream;
    let zeros = |like: &[usize]| bench.zeros::<bf16>(like);
    let (mut out, mut dx) = (zeros(x.shape())?, zeros(x.shape())?);
    let (mut dup, mut ddown) = (zeros(up.shape())?, zeros(down.shape())?);
    let mut dweights = bench.zeros::<f32>(&[o.tokens, o.top_k])?;
    let times = bench.measure(|| {
        let inputs = MoeInputs { x, choices, weights, up: up.into(), down: down.into() };
        layer.forward(&inputs, &mut out, stream)?;
        let gradients =
            MoeGradients { x: &mut dx, weights: &mut dweights, up: &mut dup, down: &mut ddown };
        layer.backward(&inputs, x, gradients, stream)
    })?;
    Ok((times, dx, dweights))
}

/// Matrices in device memory.
pub enum Stack {
    Plain(Tensor<bf16>),
    Scaled(Tensor<einsparse::formats::E4m3>, Tensor<f32>),
}

impl Stack {
    pub fn there(&self) -> Matrices<'_, bf16> {
        match self {
            Stack::Plain(plain) => plain.into(),
            Stack::Scaled(codes, scales) => (codes, scales).into(),
        }
    }
}

/// `m x`, with a row-major matrix whose rows are as long as `x`.
pub fn rows_times(m: &[bf16], x: &[f64]) -> Vec<f64> {
    let dot = |line: &[bf16]| line.iter().zip(x).map(|(m, x)| m.to_f64() * x).sum();
    m.par_chunks(x.len()).map(dot).collect()
}

/// `x m`, with a row-major matrix of `n` columns.
pub fn times_rows(x: &[f64], m: &[bf16], n: usize) -> Vec<f64> {
    let mut y = vec![0.0; n];
    for (x, line) in x.iter().zip(m.chunks(n)) {
        y.iter_mut().zip(line).for_each(|(y, m)| *y += x * m.to_f64());
    }
    y
}

/// Squared norms of a difference and of the expected values.
#[derive(Clone, Copy, Default)]
pub struct Off([f64; 2]);

impl Off {
    pub fn add(&mut self, found: f64, wanted: f64) {
        self.0[0] += (found - wanted).powi(2);
        self.0[1] += wanted.powi(2);
    }

    /// Relative error in norm; infinite if it is NaN.
    pub fn relative(self) -> f64 {
        worse(0.0, (self.0[0] / self.0[1]).sqrt())
    }
}

/// Relative error of the rows of some tokens, in norm. `expert` returns the output of an expert for a token.
pub fn error(
    tokens: impl Iterator<Item = usize>,
    (chosen, weights): (&[i32], &[f32]),
    out: &Tensor<bf16>,
    expert: impl Fn(usize, usize) -> Vec<f64>,
) -> Result<f64> {
    let out = out.to_dense()?;
    let [count, model] = [0, 1].map(|axis| out.shape()[axis]);
    let top = chosen.len() / count;
    let mut off = Off::default();
    for token in tokens {
        let mut wanted = vec![0.0; model];
        for number in token * top..(token + 1) * top {
            let weight = f64::from(weights[number]);
            let own = expert(token, chosen[number] as usize);
            wanted.iter_mut().zip(own).for_each(|(w, y)| *w += weight * y);
        }
        let found = &out.values()[token * model..];
        wanted.iter().zip(found).for_each(|(wanted, found)| off.add(found.to_f64(), *wanted));
    }
    Ok(off.relative())
}
