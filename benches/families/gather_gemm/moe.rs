//! Layer of experts (`nn::Moe`). The time includes routing, gather, both products and weighted scatter. Extents are
//! those of Switch and Qwen, and experts are chosen uniformly or by Zipf's law. Baselines compute only the two
//! products: grouped by PyTorch and by cuBLAS, and batched by cuBLAS with padding to the largest expert.
//!
//! Rates count both products of every choice.

use super::experts::{self, Off, law, met, parts, rows_times, times_rows};
use crate::peers::cublas::Addresses;
use crate::prelude::*;
use einsparse::einsum::Activation;
use einsparse::nn::{Moe, MoeInputs, MoeOptions};

pub const OP: &str = "moe";

const TOKENS: usize = 4096;
const EXPERTS: usize = 64;
/// Experts of a token, columns of a token, hidden columns.
const CASES: [(usize, usize, usize); 2] = [(1, 768, 3072), (8, 4096, 1536)];
/// Number of checked tokens.
const CHECKED: usize = 8;
/// Max relative error.
const MOST: f64 = 0.01;
/// Bound of uniform values of variance 1/2304: two of the cases' products then keep the magnitude of rows.
const SCALE: f64 = 0.036;
/// Note of a baseline that computes only the products.
const ALONE: &str = "products alone; routing, gather, ReLU, weights and scatter left out";

pub fn run(bench: &Bench<'_>) -> Result<()> {
    for (top_k, model, hidden) in CASES {
        let bench = &bench.anew()?;
        let matrices = values(EXPERTS * model * hidden, 1, SCALE);
        let x = values::dense(&[TOKENS, model], 2, NORMAL);
        let weights = values::<f32>(TOKENS * top_k, 3, 0.45).iter().map(|x| x + 0.55).collect();
        let options = MoeOptions {
            tokens: TOKENS,
            experts: EXPERTS,
            top_k,
            model,
            hidden,
            activation: Activation::Relu,
            ..MoeOptions::default()
        };
        let layer = Layer {
            bench,
            options,
            there: [
                bench.upload(&x)?,
                bench.tensor(&[EXPERTS, model, hidden], matrices.clone())?,
                bench.tensor(&[EXPERTS, hidden, model], matrices.clone())?,
            ],
            matrices,
            x,
            weights,
        };
        for zipf in [false, true] {
            layer.measure(zipf, &choices(top_k, zipf))?;
        }
    }
    Ok(())
}

/// Distinct choices of every token: uniform, or expert e with weight 1 / (e + 1).
fn choices(top: usize, zipf: bool) -> Vec<i32> {
    let mut rng = StdRng::seed_from_u64(SEED + 7);
    let mut chosen = Vec::with_capacity(TOKENS * top);
    for _ in 0..TOKENS {
        let mut weights: Vec<f64> =
            (0..EXPERTS).map(|e| if zipf { 1.0 / (e + 1) as f64 } else { 1.0 }).collect();
        for _ in 0..top {
            let all: f64 = weights.iter().sum();
            let mut at = rng.random_range(0.0..all);
            let taken = weights.iter().position(|w| {
                at -= w;
                at < 0.0
            });
            let taken = taken.unwrap_or(EXPERTS - 1);
            weights[taken] = 0.0;
            chosen.push(taken as i32);
        }
    }
    chosen
}

/// Number of tokens of each expert.
fn counts(chosen: &[i32]) -> Vec<usize> {
    let of = |e: usize| chosen.iter().filter(|&&c| c as usize == e).count();
    (0..EXPERTS).map(of).collect()
}

struct Layer<'a> {
    bench: &'a Bench<'a>,
    options: MoeOptions,
    /// Both stacks of matrices, in order.
    matrices: Vec<bf16>,
    x: Dense<bf16>,
    weights: Vec<f32>,
    /// X and both stacks in device memory.
    there: [Tensor<bf16>; 3],
}

impl Layer<'_> {
    fn measure(&self, zipf: bool, chosen: &[i32]) -> Result<()> {
        let (bench, stream, o) = (self.bench, &self.bench.stream, &self.options);
        let (model, hidden, [x, up, down]) = (o.model, o.hidden, &self.there);
        let choices = &bench.tensor(&[TOKENS, o.top_k], chosen.to_vec())?;
        let weights = &bench.tensor(&[TOKENS, o.top_k], self.weights.clone())?;
        let name = format!("moe-t{TOKENS}-e{EXPERTS}-top{}-{}", o.top_k, law(zipf));
        let row = experts::row(OP, name, o, chosen.len(), 2 * met(chosen, EXPERTS));
        let mut layer = Moe::<bf16>::new(&bench.context, o)?;
        let mut out = bench.poisoned(&[TOKENS, model])?;
        let [route, first, second] = [
            bench.measure(|| layer.route(choices, stream))?,
            bench.measure(|| layer.multiply_up(x, up, stream))?,
            bench.measure(|| layer.multiply_down(weights, down, &mut out, stream))?,
        ];
        let own = row.clone().ours(layer.variants().join(" + "));
        let inputs = MoeInputs { x, choices, weights, up: up.into(), down: down.into() };
        let tokens = || (0..CHECKED).map(|i| i * (TOKENS / CHECKED) + 5);
        bench.checked(
            own.note(parts([route, first, second])),
            &mut out,
            |out| layer.forward(&inputs, out, stream),
            |out| {
                let expert = |token, expert| {
                    let h: Vec<f64> =
                        self.hidden(token, expert).iter().map(|h| h.max(0.0)).collect();
                    times_rows(&h, self.matrix(expert), model)
                };
                Ok(experts::error(tokens(), (chosen, &self.weights), out, expert)? / MOST)
            },
        )?;
        let mut layer = Moe::<bf16>::for_training(&bench.context, o)?;
        let given = (x, choices, weights);
        let (times, dx, dweights) = experts::step(bench, &mut layer, o, given, [up, down])?;
        let error = self.gradient_error(chosen, tokens(), (&dx, &dweights))?;
        // Both stacks are read twice, both gradients are written once.
        let flops = 12.0 * (chosen.len() * model * hidden) as f64;
        let bytes = 2.0 * (6 * EXPERTS * model * hidden) as f64;
        let own = Row { workload: format!("{}-step", row.workload), ..row.clone() };
        let own = own.rated(Dtype::Bf16, flops, bytes).ours(layer.variants().join(" + "));
        bench.add(own.timed(&times).note("forward and backward").error(error / MOST))?;
        let counts = counts(chosen);
        let row = row.note(ALONE);
        let asked = format!(r#"{{"counts": {counts:?}, "model": {model}, "hidden": {hidden}}}"#);
        bench.torch(row.clone(), "moe", &asked)?;
        if let Some(cublas) = bench.cublas(false) {
            self.grouped(row.clone(), &counts, &cublas)?;
            self.padded(row, &counts, &cublas)?;
        }
        Ok(())
    }

    /// Times the two products of each expert as grouped products of cuBLAS. Tokens are sorted by expert, and the host
    /// has their counts.
    fn grouped(&self, row: Row, counts: &[usize], cublas: &CuBlas) -> Result<()> {
        let MoeOptions { model, hidden, .. } = self.options;
        let all: usize = counts.iter().sum();
        // Experts without tokens are left out.
        let counts = counts.iter().copied().enumerate();
        let met: Vec<(usize, usize)> = counts.filter(|(_, count)| *count > 0).collect();
        let packed = self.packed(all)?;
        let between = Buffer::new(all * hidden * 2)?;
        let out = Buffer::new(all * model * 2)?;
        let rows = |start: u64, width: usize| {
            let mut at = start;
            Addresses::new(met.iter().map(|(_, count)| {
                let own = at;
                at += (count * width * 2) as u64;
                own
            }))
        };
        let matrices = |start: u64| {
            let of = |(e, _): &(usize, usize)| start + (e * model * hidden * 2) as u64;
            Addresses::new(met.iter().map(of))
        };
        let (x, h, y) =
            (rows(packed.ptr, model)?, rows(between.ptr, hidden)?, rows(out.ptr, model)?);
        let (up, down) = (matrices(at(&self.there[1])?)?, matrices(at(&self.there[2])?)?);
        let extents = |k: usize, n: usize| -> Vec<[usize; 3]> {
            met.iter().map(|(_, count)| [*count, k, n]).collect()
        };
        let (first, second) = (extents(model, hidden), extents(hidden, model));
        let times = self.bench.measure(|| {
            cublas.gemm_grouped(Dtype::Bf16, &first, [&x, &up, &h])?;
            cublas.gemm_grouped(Dtype::Bf16, &second, [&h, &down, &y])
        })?;
        let row = row.by("cublas", "grouped").timed(&times);
        self.bench.add(match times.host_inside {
            true => row.also("waits for the host inside"),
            false => row,
        })
    }

    /// Times the two products of every expert by cuBLAS, padded to the largest expert.
    fn padded(&self, row: Row, counts: &[usize], cublas: &CuBlas) -> Result<()> {
        let MoeOptions { model, hidden, .. } = self.options;
        let capacity = counts.iter().max().map_or(0, |most| most.next_multiple_of(8));
        let (up, down, rows) = (at(&self.there[1])?, at(&self.there[2])?, EXPERTS * capacity);
        let packed = self.packed(rows)?;
        let between = Buffer::new(rows * hidden * 2)?;
        let out = Buffer::new(rows * model * 2)?;
        let more = rows as f64 / counts.iter().sum::<usize>() as f64;
        let row = row.by("cublas", "strided batches, padded to the largest expert");
        self.bench.time(row.also(format!("{more:.2}x the rows")), || {
            let first = [EXPERTS, capacity, model, hidden];
            cublas.gemm_batched(Dtype::Bf16, first, [packed.ptr, up, between.ptr])?;
            let second = [EXPERTS, capacity, hidden, model];
            cublas.gemm_batched(Dtype::Bf16, second, [between.ptr, down, out.ptr])
        })?;
        Ok(())
    }

    /// Returns `rows` rows of x, which repeat. The time of a product does not depend on their order.
    fn packed(&self, rows: usize) -> Result<Buffer> {
        Buffer::repeated(self.x.values(), rows * self.options.model * 2)
    }

    fn matrix(&self, expert: usize) -> &[bf16] {
        let size = self.options.model * self.options.hidden;
        &self.matrices[expert * size..][..size]
    }

    fn token(&self, token: usize) -> Vec<f64> {
        let model = self.options.model;
        self.x.values()[token * model..][..model].iter().map(|x| x.to_f64()).collect()
    }

    /// Hidden elements of a token at an expert, before the ReLU.
    fn hidden(&self, token: usize, expert: usize) -> Vec<f64> {
        times_rows(&self.token(token), self.matrix(expert), self.options.hidden)
    }

    /// Relative error, in norm, of the gradients of some tokens and their weights.
    fn gradient_error(
        &self,
        chosen: &[i32],
        tokens: impl Iterator<Item = usize>,
        (dx, dweights): (&Tensor<bf16>, &Tensor<f32>),
    ) -> Result<f64> {
        let MoeOptions { model, top_k, .. } = self.options;
        let (dx, dweights) = (dx.to_dense()?, dweights.to_dense()?);
        let (mut off, mut off_x) = (Off::default(), Off::default());
        for token in tokens {
            let x = self.token(token);
            let mut wanted = vec![0.0f64; model];
            let choices = chosen[token * top_k..][..top_k].iter();
            for (number, &expert) in (token * top_k..).zip(choices) {
                let (expert, weight) = (expert as usize, f64::from(self.weights[number]));
                let (h, own) = (self.hidden(token, expert), self.matrix(expert));
                let mut g = rows_times(own, &x);
                g.iter_mut().zip(&h).filter(|(_, h)| **h <= 0.0).for_each(|(g, _)| *g = 0.0);
                let dw = h.iter().zip(&g).map(|(h, g)| h * g).sum();
                off.add(f64::from(dweights.values()[number]), dw);
                let through = rows_times(own, &g);
                wanted.iter_mut().zip(through).for_each(|(w, g)| *w += weight * g);
            }
            let found = &dx.values()[token * model..];
            wanted.iter().zip(found).for_each(|(wanted, found)| off_x.add(found.to_f64(), *wanted));
        }
        Ok(off.relative().max(off_x.relative()))
    }
}
