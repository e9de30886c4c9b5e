//! Layer of experts (`nn::Moe`). The time includes routing, gather, both products and weighted scatter. Extents are
//! those of Switch and Qwen, and experts are chosen uniformly or by Zipf's law. Baselines compute only the two
//! products: grouped by PyTorch and by cuBLAS, and batched by cuBLAS with padding to the largest expert.
//!
//! `m` is the tokens, `k` their columns, `n` the hidden columns; rates count both products of every choice.

mod step;

use crate::peers::cublas::Addresses;
use crate::peers::torch;
use crate::prelude::*;
use einsparse::einsum::Activation;
use einsparse::nn::{Moe, MoeInputs, MoeOptions};
use rayon::prelude::*;

pub const OP: &str = "moe";

const TOKENS: usize = 4096;
const EXPERTS: usize = 64;
/// Experts of a token, columns of a token, hidden columns.
const CASES: [(usize, usize, usize); 2] = [(1, 768, 3072), (8, 4096, 1536)];
/// Number of checked tokens.
const CHECKED: usize = 8;
/// Max bytes and operations per second.
const HBM: f64 = 4.27e12;
const TENSOR_CORES: f64 = 780e12;

pub fn run(bench: &Bench<'_>) -> Result<()> {
    for (top, model, hidden) in CASES {
        let values = values(EXPERTS * model * hidden, SEED, SCALE);
        let options = MoeOptions {
            tokens: TOKENS,
            experts: EXPERTS,
            top_k: top,
            model,
            hidden,
            activation: Activation::Relu,
            ..MoeOptions::default()
        };
        let bench = &bench.anew()?;
        let layer = Layer::new(bench, options, &values)?;
        for zipf in [false, true] {
            let routed = layer.routed(zipf)?;
            layer.measure(&routed)?;
            layer.step(&routed)?;
        }
    }
    Ok(())
}

/// Bound of uniform values of variance 1/2304: two of the cases' products then keep the magnitude of rows.
const SCALE: f32 = 0.036;

/// Uniform values up to `scale`, each from a hash of its index.
pub(super) fn values(count: usize, seed: u64, scale: f32) -> Vec<bf16> {
    let value = |i: usize| {
        let mut z = (i as u64 + (seed << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let unit = (z >> 40) as f32 / (1 << 23) as f32 - 1.0;
        bf16::from_f32(unit * scale)
    };
    (0..count).into_par_iter().map(value).collect()
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

/// Operands in host memory, for the check of results.
struct Model<'a> {
    options: MoeOptions,
    /// Both stacks of matrices, in order.
    values: &'a [bf16],
    x: Dense<bf16>,
    weights: Vec<f32>,
}

struct Layer<'a> {
    bench: &'a Bench<'a>,
    options: MoeOptions,
    model: Model<'a>,
    x: Tensor<bf16>,
    up: Tensor<bf16>,
    down: Tensor<bf16>,
}

/// Experts of the tokens, and their weights.
struct Routed {
    zipf: bool,
    chosen: Vec<i32>,
    there: Tensor<i32>,
    weights: Tensor<f32>,
}

/// Note of a baseline that computes only the products.
const ALONE: &str = "routing, gather, ReLU, weights and scatter left out";

impl<'a> Layer<'a> {
    fn new(bench: &'a Bench<'a>, options: MoeOptions, values: &'a [bf16]) -> Result<Self> {
        let (columns, hidden) = (options.model, options.hidden);
        let mut rng = StdRng::seed_from_u64(SEED + 3);
        let x = (0..TOKENS * columns).map(|_| bf16::from_f32(rng.random_range(-1.73..1.73)));
        let x = Dense::new([TOKENS, columns], x.collect())?;
        let weights = (0..TOKENS * options.top_k).map(|_| rng.random_range(0.1..1.0));
        let x_there = bench.upload(&x)?;
        let model = Model { options, values, x, weights: weights.collect() };
        Ok(Layer {
            bench,
            options,
            model,
            up: bench.tensor(&[EXPERTS, columns, hidden], values.to_vec())?,
            down: bench.tensor(&[EXPERTS, hidden, columns], values.to_vec())?,
            x: x_there,
        })
    }

    fn routed(&self, zipf: bool) -> Result<Routed> {
        let shape = [TOKENS, self.options.top_k];
        let chosen = choices(self.options.top_k, zipf);
        Ok(Routed {
            zipf,
            there: self.bench.tensor(&shape, chosen.clone())?,
            weights: self.bench.tensor(&shape, self.model.weights.clone())?,
            chosen,
        })
    }

    /// Row of the record with the values that all rows share.
    fn row(&self, routed: &Routed, times: &Times) -> Row {
        let MoeOptions { model, hidden, top_k, .. } = self.options;
        let chosen = &routed.chosen;
        let used = (0..EXPERTS as i32).filter(|e| chosen.contains(e)).count();
        let law = if routed.zipf { "zipf1" } else { "uniform" };
        let workload = format!("moe-t{TOKENS}-e{EXPERTS}-top{top_k}-{law}");
        let (extents, nnz) = ([TOKENS, model, hidden], chosen.len() * model);
        let row = Row::new(OP, workload, extents, nnz, Dtype::Bf16).timed(times);
        let bytes = (2 * (2 * used * model * hidden + 2 * TOKENS * model)) as f64;
        rated(row, 4.0 * (chosen.len() * model * hidden) as f64, bytes).dense()
    }

    fn measure(&self, routed: &Routed) -> Result<()> {
        let (bench, stream) = (self.bench, &self.bench.stream);
        let (x, there, weights) = (&self.x, &routed.there, &routed.weights);
        let mut layer = Moe::<bf16>::new(&bench.context, &self.options)?;
        let mut out = bench.poisoned(&[TOKENS, self.options.model])?;
        let (up, down) = ((&self.up).into(), (&self.down).into());
        let inputs = MoeInputs { x, choices: there, weights, up, down };
        let times = bench.measure(|| layer.forward(&inputs, &mut out, stream))?;
        let error = self.model.error(&routed.chosen, &out)?;
        let route = bench.measure(|| layer.route(there, stream))?;
        let up = bench.measure(|| layer.multiply_up(x, &self.up, stream))?;
        let down = bench.measure(|| layer.multiply_down(weights, &self.down, &mut out, stream))?;
        let summed = match self.options.top_k {
            1 => "",
            _ => " and sum",
        };
        let note = format!(
            "routing {:.1}, first product {:.1}, second with scatter{summed} {:.1} us by themselves; err {error:.1e}",
            route.cold * 1e3,
            up.cold * 1e3,
            down.cold * 1e3
        );
        let row = self.row(routed, &times).ours(layer.variants().join(" + "));
        bench.add(row.judged(error < 0.01, note))?;
        self.in_torch(routed)?;
        if let Some(cublas) = or_said(CuBlas::open(bench.gpu, false), "engine cublas") {
            self.grouped(routed, &cublas)?;
            self.padded(routed, &cublas)?;
        }
        Ok(())
    }

    /// Times the two grouped products of PyTorch, with the faster of two layouts of the weights.
    fn in_torch(&self, routed: &Routed) -> Result<()> {
        let MoeOptions { model, hidden, .. } = self.options;
        let counts = counts(&routed.chosen);
        let asked = format!(r#"{{"counts": {counts:?}, "model": {model}, "hidden": {hidden}}}"#);
        let all = torch::measure("moe", &asked);
        let best = all.into_iter().min_by(|a, b| a.1.cold.total_cmp(&b.1.cold));
        let Some((variant, times)) = best else {
            return Ok(());
        };
        let row = self.row(routed, &times).by("torch", variant);
        self.bench.add(row.note(format!("products alone; {ALONE}")))
    }

    /// Times the two products of each expert as grouped products of cuBLAS. Tokens are sorted by expert, and the host
    /// has their counts.
    fn grouped(&self, routed: &Routed, cublas: &CuBlas) -> Result<()> {
        let MoeOptions { model, hidden, .. } = self.options;
        let rows = routed.chosen.len();
        // Experts without tokens are left out.
        let counts = counts(&routed.chosen).into_iter().enumerate();
        let met: Vec<(usize, usize)> = counts.filter(|(_, count)| *count > 0).collect();
        let packed = self.packed(rows)?;
        let between = Buffer::new(rows * hidden * 2)?;
        let out = Buffer::new(rows * model * 2)?;
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
        let x = rows(packed.ptr, model)?;
        let h = rows(between.ptr, hidden)?;
        let y = rows(out.ptr, model)?;
        let (up, down) = (matrices(at(&self.up)?)?, matrices(at(&self.down)?)?);
        let extents = |k: usize, n: usize| -> Vec<[usize; 3]> {
            met.iter().map(|(_, count)| [*count, k, n]).collect()
        };
        let (first, second) = (extents(model, hidden), extents(hidden, model));
        let times = self.bench.measure(|| {
            cublas.gemm_grouped(Dtype::Bf16, &first, [&x, &up, &h])?;
            cublas.gemm_grouped(Dtype::Bf16, &second, [&h, &down, &y])
        })?;
        let waits = match times.host_inside {
            true => "; waits for the host inside",
            false => "",
        };
        let row = self.row(routed, &times).by("cublas", "grouped");
        (self.bench).add(row.note(format!("products alone; {ALONE}{waits}")))
    }

    /// Times the two products of every expert by cuBLAS, padded to the largest expert.
    fn padded(&self, routed: &Routed, cublas: &CuBlas) -> Result<()> {
        let MoeOptions { model, hidden, .. } = self.options;
        let most = counts(&routed.chosen).into_iter().max().unwrap_or(0);
        let capacity = most.next_multiple_of(8);
        let (up, down, rows) = (at(&self.up)?, at(&self.down)?, EXPERTS * capacity);
        let packed = self.packed(rows)?;
        let between = Buffer::new(rows * hidden * 2)?;
        let out = Buffer::new(rows * model * 2)?;
        let times = self.bench.measure(|| {
            let first = [EXPERTS, capacity, model, hidden];
            cublas.gemm_batched(Dtype::Bf16, first, [packed.ptr, up, between.ptr])?;
            let second = [EXPERTS, capacity, hidden, model];
            cublas.gemm_batched(Dtype::Bf16, second, [between.ptr, down, out.ptr])
        })?;
        let variant = "strided batches, padded to the largest expert";
        let more = rows as f64 / routed.chosen.len() as f64;
        let row = self.row(routed, &times).by("cublas", variant);
        (self.bench).add(row.note(format!("products alone, {more:.2}x the rows; {ALONE}")))
    }

    /// Returns `rows` rows of x, which repeat. The time of a product does not depend on their order.
    fn packed(&self, rows: usize) -> Result<Buffer> {
        let packed = Buffer::new(rows * self.options.model * 2)?;
        let source: &[u8] = bytemuck::cast_slice(self.model.x.values());
        for at in (0..packed.bytes).step_by(source.len()) {
            let bytes = source.len().min(packed.bytes - at);
            packed.write(at, &source[..bytes])?;
        }
        Ok(packed)
    }
}

impl Model<'_> {
    /// Row `at` of a stack of matrices.
    fn line(&self, at: usize, width: usize) -> &[bf16] {
        &self.values[at * width..(at + 1) * width]
    }

    /// Hidden elements of a token at an expert, before the ReLU.
    fn hidden(&self, token: usize, expert: usize) -> Vec<f64> {
        let MoeOptions { model, hidden, .. } = self.options;
        let mut h = vec![0.0f64; hidden];
        for (i, x) in self.x.values()[token * model..][..model].iter().enumerate() {
            for (h, w) in h.iter_mut().zip(self.line(expert * model + i, hidden)) {
                *h += x.to_f64() * w.to_f64();
            }
        }
        h
    }

    /// Relative error of some tokens' rows, in norm.
    fn error(&self, chosen: &[i32], out: &Tensor<bf16>) -> Result<f64> {
        let MoeOptions { model, hidden, top_k, .. } = self.options;
        let out = out.to_dense()?;
        let pairs = (0..CHECKED * top_k).into_par_iter().map(|pair| {
            let token = pair / top_k * (TOKENS / CHECKED) + 5;
            let number = token * top_k + pair % top_k;
            let expert = chosen[number] as usize;
            let mut y = vec![0.0f64; model];
            for (i, h) in self.hidden(token, expert).iter().enumerate() {
                for (y, w) in y.iter_mut().zip(self.line(expert * hidden + i, model)) {
                    *y += h.max(0.0) * w.to_f64();
                }
            }
            let weight = f64::from(self.weights[number]);
            y.iter_mut().for_each(|y| *y *= weight);
            (token, y)
        });
        let pairs: Vec<_> = pairs.collect();
        let (mut off, mut size) = (0.0f64, 0.0f64);
        for of_token in pairs.chunks(top_k) {
            let found = &out.values()[of_token[0].0 * model..][..model];
            for (column, found) in found.iter().enumerate() {
                let wanted: f64 = of_token.iter().map(|(_, y)| y[column]).sum();
                off += (found.to_f64() - wanted).powi(2);
                size += wanted.powi(2);
            }
        }
        let error = (off / size).sqrt();
        Ok(if error.is_nan() { f64::INFINITY } else { error })
    }
}

/// Sets the rates of `flops` and `bytes`, and the min time of both.
pub(super) fn rated(row: Row, flops: f64, bytes: f64) -> Row {
    let floor = (bytes / HBM).max(flops / TENSOR_CORES) * 1e3;
    row.flops(flops).bytes(bytes).limit(floor)
}
