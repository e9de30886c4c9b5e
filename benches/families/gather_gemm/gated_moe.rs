//! Layer of gated experts (`nn::Router`, `nn::Moe` with SiLU) from its logits on: softmax and top-k, sort, gather, both
//! products, weighted scatter. The layers are those of Qwen3-30B-A3B and of Mixtral, from one token to 4,096. Matrices
//! are stored in bf16 and as e4m3 with scales (`-e4m3`), with quantized rows too (`-w8a8`). Experts are chosen
//! uniformly or by Zipf's law. The baseline is compiled PyTorch. Its 8-bit products scale rows of both sides, and use
//! tokens in their order.
//!
//! Rates count three products of every choice.

use super::experts::{self, Stack, law, met, parts, rows_times};
use crate::prelude::*;
use einsparse::dynamic::Gate;
use einsparse::formats::{scale_blocks, unscale_blocks};
use einsparse::nn::{Moe, MoeInputs, MoeOptions, Router, RouterOptions};

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
        let shapes = options.shapes();
        let most = 1.0 / (model as f64).sqrt();
        let plain = [0, 1].map(|i| values::dense::<bf16>(&shapes[i], 1 + i, most));
        let [up, down] = bench.uploads(plain.each_ref())?;
        let layer = Layer { bench, name, on: [Stack::Plain(up), Stack::Plain(down)], host: plain };
        layer.all(options)?;
        // Frees memory for the e4m3 matrices.
        let Layer { host: plain, on, .. } = layer;
        drop(on);
        let scaled = |dense: &Dense<bf16>| -> Result<_> {
            let (codes, scales) = scale_blocks(dense)?;
            let there = Stack::Scaled(bench.upload(&codes)?, bench.upload(&scales)?);
            Ok((there, unscale_blocks(&codes, &scales)?))
        };
        let ((up, rounded_up), (down, rounded_down)) = (scaled(&plain[0])?, scaled(&plain[1])?);
        let layer = Layer { bench, name, on: [up, down], host: [rounded_up, rounded_down] };
        for quantize in [false, true] {
            layer.all(MoeOptions { scaled: true, quantize, ..options })?;
        }
    }
    Ok(())
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
    host: [Dense<bf16>; 2],
}

impl Layer<'_> {
    fn all(&self, options: MoeOptions) -> Result<()> {
        let stored = match (options.scaled, options.quantize) {
            (false, _) => "",
            (true, false) => "-e4m3",
            (true, true) => "-w8a8",
        };
        for tokens in TOKENS {
            for zipf in [false, true] {
                let workload = format!("{}-t{tokens}-{}{stored}", self.name, law(zipf));
                if self.bench.arguments.named(&workload) {
                    self.measure(&MoeOptions { tokens, ..options }, zipf, workload)?;
                }
            }
        }
        Ok(())
    }

    fn measure(&self, o: &MoeOptions, zipf: bool, workload: String) -> Result<()> {
        let (bench, stream) = (self.bench, &self.bench.stream);
        let MoeOptions { tokens, experts, top_k, model, hidden, .. } = *o;
        let router = RouterOptions { tokens, experts, top_k, normalized: true };
        let router = Router::<f32>::new(&bench.context, &router)?;
        let mut layer = Moe::<bf16>::new(&bench.context, o)?;
        let x = values::dense::<bf16>(&[tokens, model], 3, 1.7);
        let there = &bench.upload(&x)?;
        let logits = bench.tensor(&[tokens, experts], logits(o, zipf))?;
        let mut choices = bench.tensor(&[tokens, top_k], vec![0i32; tokens * top_k])?;
        let mut weights = bench.zeros::<f32>(&[tokens, top_k])?;
        let mut out = bench.poisoned(&[tokens, model])?;
        let [up, down] = [self.on[0].there(), self.on[1].there()];
        let mut all = |out: &mut Tensor<bf16>| {
            router.forward(&logits, &mut choices, &mut weights, stream)?;
            let (choices, weights) = (&choices, &weights);
            layer.forward(&MoeInputs { x: there, choices, weights, up, down }, out, stream)
        };
        let times = bench.measure(|| all(&mut out))?;
        let chosen = choices.to_dense()?.into_values();
        let error = self.error(o, &x, (&chosen, weights.to_dense()?.values()), &out)?;
        let element = if o.scaled { 1 } else { 2 };
        let row = experts::row(OP, workload, o, chosen.len(), element * met(&chosen, experts));
        let route = bench.measure(|| {
            router.forward(&logits, &mut choices, &mut weights, stream)?;
            layer.route(&choices, stream)
        })?;
        let first = bench.measure(|| layer.multiply_up(there, up, stream))?;
        let second = bench.measure(|| layer.multiply_down(&weights, down, &mut out, stream))?;
        let own = row.clone().ours(layer.variants().join(" + ")).timed(&times);
        // Quantized rows are rounded to 4 significant bits twice.
        let most = if o.quantize { 0.06 } else { 0.01 };
        bench.add(own.note(parts([route, first, second])).error(error / most))?;
        if let [Stack::Plain(up), Stack::Plain(down)] = &self.on
            && tokens >= TRAINED
        {
            let (choices, weights) = (&choices, &weights);
            let (up_of, down_of) = (up.into(), down.into());
            let inputs = MoeInputs { x: there, choices, weights, up: up_of, down: down_of };
            let alone = bench.measure(|| layer.forward(&inputs, &mut out, stream))?;
            let mut layer = Moe::<bf16>::for_training(&bench.context, o)?;
            let (step, ..) =
                experts::step(bench, &mut layer, o, (there, choices, weights), [up, down])?;
            let times = step.cold / alone.cold - 1.0;
            let own = Row { workload: format!("{}-step", row.workload), ..row.clone() };
            let own = own.flops(18.0 * (chosen.len() * model * hidden) as f64).timed(&step);
            let note = format!("without the router; the gradients take {times:.2} times the layer");
            bench.add(own.ours("forward + backward").note(note))?;
        }
        let (zipf, scaled) = (u8::from(zipf), u8::from(o.scaled));
        let asked = format!(
            r#"{{"tokens": {tokens}, "experts": {experts}, "top": {top_k}, "model": {model}, "hidden": {hidden}, "zipf": {zipf}, "scaled": {scaled}}}"#
        );
        bench.torch(row.note("other draws of the same law"), "gated", &asked)
    }

    /// Relative error of some tokens' rows, in norm.
    fn error(
        &self,
        o: &MoeOptions,
        x: &Dense<bf16>,
        routed: (&[i32], &[f32]),
        out: &Tensor<bf16>,
    ) -> Result<f64> {
        let tokens = (0..CHECKED.min(o.tokens)).map(|at| at * (o.tokens / CHECKED).max(1));
        let size = o.hidden * o.model;
        let [up, down] = self.host.each_ref().map(Dense::values);
        let expert = |token: usize, expert: usize| {
            let x = x.values()[token * o.model..][..o.model].iter();
            let x: Vec<f64> = x.map(|x| x.to_f64()).collect();
            let both = rows_times(&up[expert * 2 * size..][..2 * size], &x);
            let (gates, linear) = both.split_at(o.hidden);
            let hidden = gates.iter().zip(linear).map(|(g, x)| g / (1.0 + (-g).exp()) * x);
            rows_times(&down[expert * size..][..size], &hidden.collect::<Vec<f64>>())
        };
        experts::error(tokens, routed, out, expert)
    }
}
