//! A layer of gated experts (`nn::Router`, `nn::Moe` with SiLU) from its logits on: softmax and top-k, sort, gather, both
//! products, weighted scatter. The layers of Qwen3-30B-A3B and of Mixtral, from one token to 4,096, matrices as they are
//! stored; experts chosen evenly or by Zipf's law. Beside it the same by PyTorch, compiled.
//!
//! `m` are the tokens, `k` their columns, `n` the hidden ones; rates count three products of every choice.

use super::moe::{rated, values};
use crate::peers::torch;
use crate::prelude::*;
use einsparse::dynamic::Gate;
use einsparse::nn::{Moe, MoeOptions, Router, RouterOptions};
use rayon::prelude::*;

pub const OP: &str = "gated_moe";

/// Name, columns of a token, experts, hidden columns, experts of a token.
const MODELS: [(&str, usize, usize, usize, usize); 2] = [
    ("qwen3-30b-a3b", 2048, 128, 768, 8),
    ("mixtral-8x7b", 4096, 8, 14336, 2),
];
const TOKENS: [usize; 6] = [1, 16, 64, 256, 1024, 4096];
/// So many tokens are checked.
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
        let matrices = [
            values(up.iter().product(), 1, scale),
            values(down.iter().product(), 2, scale),
        ];
        let layer = Layer {
            bench,
            name,
            up: bench.tensor(&up, matrices[0].clone())?,
            down: bench.tensor(&down, matrices[1].clone())?,
            matrices,
        };
        for tokens in TOKENS {
            let options = MoeOptions { tokens, ..options };
            for zipf in [false, true] {
                layer.measure(options, zipf)?;
            }
        }
    }
    Ok(())
}

/// Logits whose greatest are drawn evenly, or as expert e with weight 1 / (e + 1): each plus Gumbel noise.
fn logits(o: &MoeOptions, zipf: bool) -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(SEED + 11);
    let mut logit = |i: usize| {
        let unit: f32 = rng.random_range(1e-7..1.0);
        let weight = if zipf {
            (i % o.experts) as f32 + 1.0
        } else {
            1.0
        };
        -(-unit.ln()).ln() - weight.ln()
    };
    (0..o.tokens * o.experts).map(&mut logit).collect()
}

/// Matrices on the host and on the GPU.
struct Layer<'a> {
    bench: &'a Bench<'a>,
    name: &'static str,
    up: Tensor<bf16>,
    down: Tensor<bf16>,
    matrices: [Vec<bf16>; 2],
}

impl Layer<'_> {
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
        let matrices = (&self.up, &self.down);
        let times = bench.measure(|| {
            router.forward(&logits, (&mut choices, &mut weights), stream)?;
            layer.forward(&there, (&choices, &weights), matrices, &mut out, stream)
        })?;
        let chosen = choices.to_dense()?.into_values();
        let weighed = weights.to_dense()?.into_values();
        let error = self.error(&o, (&x, &chosen, &weighed), &out)?;
        let routed = bench.measure(|| {
            router.forward(&logits, (&mut choices, &mut weights), stream)?;
            layer.route(&choices, stream)
        })?;
        let up = bench.measure(|| layer.multiply_up(&there, &self.up, stream))?;
        let down = bench.measure(|| layer.multiply_down(&weights, &self.down, &mut out, stream))?;
        let note = format!(
            "router and routing {:.1}, first product {:.1}, second with scatter and sum {:.1} us by themselves; err {error:.1e}",
            routed.cold * 1e3,
            up.cold * 1e3,
            down.cold * 1e3
        );
        let row = self.row(&o, zipf, &chosen, &times);
        let row = row.ours(layer.variants().join(" + "));
        bench.add(row.judged(error < 0.01, note))?;
        let asked = format!(
            r#"{{"tokens": {}, "experts": {}, "top": {}, "model": {}, "hidden": {}, "zipf": {}}}"#,
            o.tokens,
            o.experts,
            o.top_k,
            o.model,
            o.hidden,
            u8::from(zipf)
        );
        let all = torch::measure("gated", &asked);
        let best = all.into_iter().min_by(|a, b| a.1.cold.total_cmp(&b.1.cold));
        let Some((variant, times)) = best else {
            return Ok(());
        };
        let row = self.row(&o, zipf, &chosen, &times).by("torch", variant);
        bench.add(row.note("other draws of the same law"))
    }

    /// What every row says.
    fn row(&self, o: &MoeOptions, zipf: bool, chosen: &[i32], times: &Times) -> Row {
        let met = (0..o.experts as i32).filter(|e| chosen.contains(e)).count();
        let law = if zipf { "zipf1" } else { "uniform" };
        let workload = format!("{}-t{}-{law}", self.name, o.tokens);
        let extents = [o.tokens, o.model, o.hidden];
        let row = Row::new(OP, workload, extents, chosen.len() * o.model, Dtype::Bf16);
        let flops = 6.0 * (chosen.len() * o.model * o.hidden) as f64;
        let bytes = (2 * (3 * met * o.model * o.hidden + 2 * o.tokens * o.model)) as f64;
        rated(row.timed(times), flops, bytes).dense()
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
            let row: Vec<f64> = x[token * o.model..][..o.model]
                .iter()
                .map(|x| x.to_f64())
                .collect();
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
                let sums: Vec<f64> = sums
                    .map(|i| dot(&hidden, &down[i * o.hidden..][..o.hidden]))
                    .collect();
                let weight = f64::from(weights[number]);
                wanted
                    .iter_mut()
                    .zip(sums)
                    .for_each(|(w, s)| *w += weight * s);
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
