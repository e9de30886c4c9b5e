//! Layer of gated experts (`nn::Router`, `nn::Moe` with SiLU) from its logits on: softmax and top-k, sort, gather, both
//! products, weighted scatter. The layers are those of Qwen3-30B-A3B and of Mixtral, from one token to 4,096. Matrices
//! are stored in bf16 and as e4m3 with scales (`-e4m3`), with quantized rows too (`-w8a8`). Experts are chosen
//! uniformly or by Zipf's law. The baseline is compiled PyTorch. Its 8-bit products scale rows of both sides, and use
//! tokens in their order.
//!
//! `m` is the tokens, `k` their columns, `n` the hidden columns; rates count three products of every choice.

use super::moe::{rated, values};
use crate::peers::torch;
use crate::prelude::*;
use einsparse::dynamic::{Gate, Matrices};
use einsparse::formats::{E4m3, scale_blocks, unscale_blocks};
use einsparse::nn::{Moe, MoeGradients, MoeInputs, MoeOptions, Router, RouterOptions};
use rayon::prelude::*;

pub const OP: &str = "gated_moe";

/// Name, columns of a token, experts, hidden columns, experts of a token.
const MODELS: [(&str, usize, usize, usize, usize); 2] =
    [("qwen3-30b-a3b", 2048, 128, 768, 8), ("mixtral-8x7b", 4096, 8, 14336, 2)];
const TOKENS: [usize; 6] = [1, 16, 64, 256, 1024, 4096];
/// Min number of tokens for which a training step is measured.
const TRAINED: usize = 1024;
/// Number of checked tokens.
const CHECKED: usize = 2;

pub fn run(bench: &Bench<'_>) -> Result<()> {
    for (name, model, experts, hidden, top_k) in MODELS {
        let bench = &bench.anew()?;
        let options = MoeOptions {
            experts,
            top_k,
            model,
            hidden,
            gate: Some(Gate::Silu),
            transposed: true,
            ..MoeOptions::default()
        };
        let [up, down] = options.shapes();
        let scale = 1.0 / (model as f32).sqrt();
        let matrices =
            [values(up.iter().product(), 1, scale), values(down.iter().product(), 2, scale)];
        let layer = Layer {
            bench,
            name,
            on: [
                Stack::Plain(bench.tensor(&up, matrices[0].clone())?),
                Stack::Plain(bench.tensor(&down, matrices[1].clone())?),
            ],
            matrices,
        };
        layer.all(options)?;
        let layer = layer.scaled([up, down])?;
        for quantize in [false, true] {
            layer.all(MoeOptions { scaled: true, quantize, ..options })?;
        }
    }
    Ok(())
}

/// Matrices in device memory.
enum Stack {
    Plain(Tensor<bf16>),
    Scaled(Tensor<E4m3>, Tensor<f32>),
}

impl Stack {
    fn there(&self) -> Matrices<'_, bf16> {
        match self {
            Stack::Plain(plain) => plain.into(),
            Stack::Scaled(codes, scales) => (codes, scales).into(),
        }
    }
}

/// Logits whose max is uniform over the experts, or is expert e with weight 1 / (e + 1): the log of the weight plus
/// Gumbel noise.
fn logits(o: &MoeOptions, zipf: bool) -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(SEED + 11);
    let mut logit = |i: usize| {
        let unit: f32 = rng.random_range(1e-7..1.0);
        let weight = if zipf { (i % o.experts) as f32 + 1.0 } else { 1.0 };
        -(-unit.ln()).ln() - weight.ln()
    };
    (0..o.tokens * o.experts).map(&mut logit).collect()
}

/// First and second matrices, in device and host memory.
struct Layer<'a> {
    bench: &'a Bench<'a>,
    name: &'static str,
    on: [Stack; 2],
    matrices: [Vec<bf16>; 2],
}

impl Layer<'_> {
    fn all(&self, options: MoeOptions) -> Result<()> {
        for tokens in TOKENS {
            let options = MoeOptions { tokens, ..options };
            for zipf in [false, true] {
                if self.bench.arguments.named(&self.workload(&options, zipf)) {
                    self.measure(options, zipf)?;
                }
            }
        }
        Ok(())
    }

    /// Layer with the matrices of these shapes in e4m3.
    fn scaled(self, shapes: [[usize; 3]; 2]) -> Result<Self> {
        let Layer { bench, name, on, matrices } = self;
        // Frees memory for the e4m3 matrices.
        drop(on);
        let mut on = Vec::new();
        let mut rounded = Vec::new();
        for (matrix, shape) in matrices.into_iter().zip(shapes) {
            let (codes, scales) = scale_blocks(&Dense::new(shape, matrix)?)?;
            rounded.push(unscale_blocks(&codes, &scales)?.into_values());
            let blocks = scales.shape().to_vec();
            on.push(Stack::Scaled(
                bench.tensor(&shape, codes.into_values())?,
                bench.tensor(&blocks, scales.into_values())?,
            ));
        }
        let two = "two stacks of matrices";
        Ok(Layer {
            bench,
            name,
            on: on.try_into().map_err(|_| two)?,
            matrices: rounded.try_into().map_err(|_| two)?,
        })
    }

    fn measure(&self, o: MoeOptions, zipf: bool) -> Result<()> {
        let (bench, stream) = (self.bench, &self.bench.stream);
        let shape = [o.tokens, o.top_k];
        let router = Router::<f32>::new(
            &bench.context,
            &RouterOptions {
                tokens: o.tokens,
                experts: o.experts,
                top_k: o.top_k,
                normalized: true,
            },
        )?;
        let mut layer = Moe::<bf16>::new(&bench.context, &o)?;
        let x = values(o.tokens * o.model, 3, 1.7);
        let there = bench.tensor(&[o.tokens, o.model], x.clone())?;
        let logits = bench.tensor(&[o.tokens, o.experts], logits(&o, zipf))?;
        let mut choices = bench.tensor(&shape, vec![0i32; o.tokens * o.top_k])?;
        let mut weights = bench.zeros::<f32>(&shape)?;
        let mut out = bench.poisoned(&[o.tokens, o.model])?;
        let [up, down] = [self.on[0].there(), self.on[1].there()];
        let times = bench.measure(|| {
            router.forward(&logits, &mut choices, &mut weights, stream)?;
            layer.forward(
                &MoeInputs {
                    x: &there,
                    choices: &choices,
                    weights: &weights,
                    up: up.into(),
                    down: down.into(),
                },
                &mut out,
                stream,
            )
        })?;
        let chosen = choices.to_dense()?.into_values();
        let weighed = weights.to_dense()?.into_values();
        let error = self.error(&o, (&x, &chosen, &weighed), &out)?;
        let routed = bench.measure(|| {
            router.forward(&logits, &mut choices, &mut weights, stream)?;
            layer.route(&choices, stream)
        })?;
        let up = bench.measure(|| layer.multiply_up(&there, up, stream))?;
        let down = bench.measure(|| layer.multiply_down(&weights, down, &mut out, stream))?;
        let note = format!(
            "router and routing {:.1}, first product {:.1}, second with scatter and sum {:.1} us by themselves; err {error:.1e}",
            routed.cold * 1e3,
            up.cold * 1e3,
            down.cold * 1e3
        );
        let row = self.row(&o, zipf, &chosen, &times);
        let row = row.ours(layer.variants().join(" + "));
        // Quantized rows are rounded to 4 significant bits twice.
        let most = if o.quantize { 0.06 } else { 0.01 };
        bench.add(row.judged(error < most, note))?;
        if let (Stack::Plain(up), Stack::Plain(down)) = (&self.on[0], &self.on[1])
            && o.tokens >= TRAINED
        {
            let (up, down) = (up.into(), down.into());
            let inputs = MoeInputs { x: &there, choices: &choices, weights: &weights, up, down };
            let alone = bench.measure(|| layer.forward(&inputs, &mut out, stream))?;
            let step = self.step(&o, &inputs)?;
            let row = self.row(&o, zipf, &chosen, &step);
            let times = step.cold / alone.cold - 1.0;
            let flops = 18.0 * (chosen.len() * o.model * o.hidden) as f64;
            let note = format!("without the router; the gradients take {times:.2} times the layer");
            bench.add(Row {
                workload: format!("{}-step", row.workload),
                ..row.flops(flops).ours("forward + backward").note(note)
            })?;
        }
        if !bench.arguments.wants_engine("torch") {
            return Ok(());
        }
        let asked = format!(
            r#"{{"tokens": {}, "experts": {}, "top": {}, "model": {}, "hidden": {}, "zipf": {}, "scaled": {}}}"#,
            o.tokens,
            o.experts,
            o.top_k,
            o.model,
            o.hidden,
            u8::from(zipf),
            u8::from(o.scaled)
        );
        let all = torch::measure("gated", &asked);
        let best = all.into_iter().min_by(|a, b| a.1.cold.total_cmp(&b.1.cold));
        let Some((variant, times)) = best else {
            return Ok(());
        };
        let row = self.row(&o, zipf, &chosen, &times).by("torch", variant);
        bench.add(row.note("other draws of the same law"))
    }

    /// Times a training step after the router. The gradient of the output is x.
    fn step(&self, o: &MoeOptions, inputs: &MoeInputs<'_, bf16>) -> Result<Times> {
        let (bench, stream) = (self.bench, &self.bench.stream);
        let mut layer = Moe::<bf16>::for_training(&bench.context, o)?;
        let zeros = |shape: &[usize]| bench.zeros::<bf16>(shape);
        let rows = [o.tokens, o.model];
        let [up, down] = o.shapes();
        let (mut out, mut dx) = (zeros(&rows)?, zeros(&rows)?);
        let (mut dup, mut ddown) = (zeros(&up)?, zeros(&down)?);
        let mut dweights = bench.zeros::<f32>(&[o.tokens, o.top_k])?;
        bench.measure(|| {
            layer.forward(inputs, &mut out, stream)?;
            let gradients =
                MoeGradients { x: &mut dx, weights: &mut dweights, up: &mut dup, down: &mut ddown };
            layer.backward(inputs, inputs.x, gradients, stream)
        })
    }

    fn workload(&self, o: &MoeOptions, zipf: bool) -> String {
        let law = if zipf { "zipf1" } else { "uniform" };
        let stored = match (o.scaled, o.quantize) {
            (false, _) => "",
            (true, false) => "-e4m3",
            (true, true) => "-w8a8",
        };
        format!("{}-t{}-{law}{stored}", self.name, o.tokens)
    }

    /// Row of the record with the values that all rows share.
    fn row(&self, o: &MoeOptions, zipf: bool, chosen: &[i32], times: &Times) -> Row {
        let met = (0..o.experts as i32).filter(|e| chosen.contains(e)).count();
        let element = if o.scaled { 1 } else { 2 };
        let workload = self.workload(o, zipf);
        let extents = [o.tokens, o.model, o.hidden];
        let row = Row::new(OP, workload, extents, chosen.len() * o.model, Dtype::Bf16);
        let flops = 6.0 * (chosen.len() * o.model * o.hidden) as f64;
        let bytes = element * 3 * met * o.model * o.hidden + 4 * o.tokens * o.model;
        rated(row.timed(times), flops, bytes as f64).dense()
    }

    /// Relative error of some tokens' rows, in norm.
    fn error(
        &self,
        o: &MoeOptions,
        (x, chosen, weights): (&[bf16], &[i32], &[f32]),
        out: &Tensor<bf16>,
    ) -> Result<f64> {
        let found = out.to_dense()?;
        let [up, down] = &self.matrices;
        let dot =
            |a: &[f64], b: &[bf16]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b.to_f64()).sum() };
        let (mut off, mut size) = (0.0f64, 0.0f64);
        for at in 0..CHECKED.min(o.tokens) {
            let token = at * (o.tokens / CHECKED).max(1);
            let row: Vec<f64> =
                x[token * o.model..][..o.model].iter().map(|x| x.to_f64()).collect();
            let mut wanted = vec![0.0; o.model];
            for number in token * o.top_k..(token + 1) * o.top_k {
                let expert = chosen[number] as usize;
                let up = &up[expert * 2 * o.hidden * o.model..][..2 * o.hidden * o.model];
                let down = &down[expert * o.hidden * o.model..][..o.hidden * o.model];
                let sum = |j: usize| dot(&row, &up[j * o.model..][..o.model]);
                let hidden = (0..o.hidden).into_par_iter().map(|j| {
                    let gate = sum(j);
                    gate / (1.0 + (-gate).exp()) * sum(o.hidden + j)
                });
                let hidden: Vec<f64> = hidden.collect();
                let sums = (0..o.model).into_par_iter();
                let sums: Vec<f64> =
                    sums.map(|i| dot(&hidden, &down[i * o.hidden..][..o.hidden])).collect();
                let weight = f64::from(weights[number]);
                wanted.iter_mut().zip(sums).for_each(|(w, s)| *w += weight * s);
            }
            for (wanted, found) in wanted.iter().zip(&found.values()[token * o.model..]) {
                off += (found.to_f64() - wanted).powi(2);
                size += wanted.powi(2);
            }
        }
        let error = (off / size).sqrt();
        Ok(if error.is_nan() { f64::INFINITY } else { error })
    }
}
