//! A layer of experts (`ops::MoeLayer`), routing, gather, both products and weighted scatter inside the time: Switch and Qwen-like
//! extents, experts chosen evenly or by Zipf's law. Beside it the two products alone: in groups
//! by PyTorch and by cuBLAS, and by cuBLAS in batches padded to the largest expert.
//!
//! `m` are the tokens, `k` their columns, `n` the hidden ones; rates count both products of every choice.

mod step;

use crate::device::{Buffer, Gpu, Result};
use crate::peers::cublas::{Addresses, CuBlas};
use crate::peers::torch;
use crate::problems::{Dtype, SEED};
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::einsum::Activation;
use einsparse::formats::{Dense, bf16};
use einsparse::ops::{MoeLayer, MoeOptions};
use einsparse::{Context, Stream, Tensor};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rayon::prelude::*;
use std::fmt::Display;

pub const OP: &str = "moe";

const TOKENS: usize = 4096;
const EXPERTS: usize = 64;
/// Experts of a token, columns of a token, hidden ones.
const CASES: [(usize, usize, usize); 2] = [(1, 768, 3072), (8, 4096, 1536)];
/// So many tokens are checked.
const CHECKED: usize = 8;
/// Bytes a second, and operations.
const HBM: f64 = 4.27e12;
const TENSOR_CORES: f64 = 780e12;

fn text(e: impl Display) -> String {
    e.to_string()
}

/// Measures every case.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    for (top, model, hidden) in CASES {
        let values = values(EXPERTS * model * hidden, SEED);
        let options = MoeOptions {
            tokens: TOKENS,
            experts: EXPERTS,
            top_k: top,
            model,
            hidden,
            activation: Activation::Relu,
        };
        let layer = Layer::new(options, &values)?;
        for zipf in [false, true] {
            layer.measure(gpu, effort, recorder, zipf)?;
            layer.step(gpu, effort, recorder, zipf)?;
        }
    }
    Ok(())
}

/// Values of variance 1/2304, uniform, each from a hash of its place: two of the cases' products then keep the size of rows.
fn values(count: usize, seed: u64) -> Vec<bf16> {
    let value = |i: usize| {
        let mut z = (i as u64 + (seed << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let unit = (z >> 40) as f32 / (1 << 23) as f32 - 1.0;
        bf16::from_f32(unit * 0.036)
    };
    (0..count).into_par_iter().map(value).collect()
}

/// Choices of every token, different ones: evenly, or expert e with weight 1 / (e + 1).
fn choices(top: usize, zipf: bool) -> Vec<i32> {
    let mut rng = StdRng::seed_from_u64(SEED + 7);
    let mut chosen = Vec::with_capacity(TOKENS * top);
    for _ in 0..TOKENS {
        let mut weights: Vec<f64> = (0..EXPERTS)
            .map(|e| if zipf { 1.0 / (e + 1) as f64 } else { 1.0 })
            .collect();
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

/// Tokens of each expert.
fn counts(chosen: &[i32]) -> Vec<usize> {
    let of = |e: usize| chosen.iter().filter(|&&c| c as usize == e).count();
    (0..EXPERTS).map(of).collect()
}

struct Layer<'a> {
    options: MoeOptions,
    context: Context,
    /// Both stacks of matrices, in order.
    values: &'a [bf16],
    x: Dense<bf16>,
    x_there: Tensor<bf16>,
    up: Tensor<bf16>,
    down: Tensor<bf16>,
    weights: Vec<f32>,
}

impl<'a> Layer<'a> {
    fn new(options: MoeOptions, values: &'a [bf16]) -> Result<Self> {
        let context = Context::cuda(0).map_err(text)?;
        let MoeOptions {
            model,
            hidden,
            top_k,
            ..
        } = options;
        let mut rng = StdRng::seed_from_u64(SEED + 3);
        let x = (0..TOKENS * model).map(|_| bf16::from_f32(rng.random_range(-1.73..1.73)));
        let x = Dense::new([TOKENS, model], x.collect()).map_err(text)?;
        let upload = |shape: [usize; 3]| {
            let dense = Dense::new(shape, values.to_vec()).map_err(text)?;
            context.upload_dense(&dense).map_err(text)
        };
        let (up, down) = (
            upload([EXPERTS, model, hidden])?,
            upload([EXPERTS, hidden, model])?,
        );
        let weights = (0..TOKENS * top_k).map(|_| rng.random_range(0.1..1.0));
        Ok(Layer {
            options,
            values,
            x_there: context.upload_dense(&x).map_err(text)?,
            x,
            up,
            down,
            weights: weights.collect(),
            context,
        })
    }

    /// What every row says.
    fn row(&self, zipf: bool, choices: &[i32], times: Times) -> Row {
        let MoeOptions {
            model,
            hidden,
            top_k,
            ..
        } = self.options;
        let used = (0..EXPERTS as i32).filter(|e| choices.contains(e)).count();
        let flops = 4.0 * (choices.len() * model * hidden) as f64;
        let bytes = (2 * (2 * used * model * hidden + 2 * TOKENS * model)) as f64;
        let floor = (bytes / HBM).max(flops / TENSOR_CORES) * 1e3;
        Row {
            op: OP.into(),
            workload: format!(
                "moe-t{TOKENS}-e{EXPERTS}-top{top_k}-{}",
                if zipf { "zipf1" } else { "uniform" }
            ),
            m: TOKENS,
            k: model,
            n: hidden,
            nnz: choices.len() * model,
            dtype: "bf16".into(),
            ms: times.cold,
            ms_warm: Some(times.warm),
            gflops: Some(flops / times.cold / 1e6),
            gbps: Some(bytes / times.cold / 1e6),
            limit_fraction: Some(floor / times.cold),
            zeros: "dense".into(),
            ..Row::default()
        }
    }

    fn measure(
        &self,
        gpu: &Gpu,
        effort: Effort,
        recorder: &mut Recorder,
        zipf: bool,
    ) -> Result<()> {
        let MoeOptions { model, top_k, .. } = self.options;
        let chosen = choices(top_k, zipf);
        let dense = |values| Dense::new([TOKENS, top_k], values);
        let there = dense(chosen.clone()).map_err(text)?;
        let there = self.context.upload_dense(&there).map_err(text)?;
        let weights = Dense::new([TOKENS, top_k], self.weights.clone()).map_err(text)?;
        let weights = self.context.upload_dense(&weights).map_err(text)?;
        // SAFETY: the bench's stream belongs to the primary context and outlives every case.
        let stream = unsafe { Stream::from_raw(gpu.stream.cast()) };
        let mut layer = MoeLayer::<bf16>::new(&self.context, self.options).map_err(text)?;
        let poison = Dense::new([TOKENS, model], vec![bf16::NAN; TOKENS * model]);
        let mut out = self
            .context
            .upload_dense(&poison.map_err(text)?)
            .map_err(text)?;
        let times = measure(gpu, effort, &mut || {
            let (routed, matrices) = ((&there, &weights), (&self.up, &self.down));
            let ran = layer.run(&self.x_there, routed, matrices, &mut out, &stream);
            ran.map_err(text)
        })?;
        let error = self.error(&chosen, &out)?;
        let route = measure(gpu, effort, &mut || {
            layer.route(&there, &stream).map_err(text)
        })?;
        let up = measure(gpu, effort, &mut || {
            let ran = layer.multiply_up(&self.x_there, &self.up, &stream);
            ran.map_err(text)
        })?;
        let down = measure(gpu, effort, &mut || {
            let ran = layer.multiply_down(&weights, &self.down, &mut out, &stream);
            ran.map_err(text)
        })?;
        let right = error < 0.01;
        recorder.add(Row {
            engine: "einsparse".into(),
            variant: layer.variants().join(" + "),
            note: format!(
                "{}routing {:.1}, first product {:.1}, second with scatter{} {:.1} us by themselves; err {error:.1e}",
                if right { "" } else { "WRONG: " },
                route.cold * 1e3,
                up.cold * 1e3,
                if top_k > 1 { " and sum" } else { "" },
                down.cold * 1e3
            ),
            ..self.row(zipf, &chosen, times)
        })?;
        self.in_torch(recorder, zipf, &chosen)?;
        let cublas = match CuBlas::open(gpu, false) {
            Ok(cublas) => cublas,
            Err(reason) => {
                println!("engine cublas left out: {reason}");
                return Ok(());
            }
        };
        self.grouped(gpu, effort, recorder, (zipf, &chosen), &cublas)?;
        self.padded(gpu, effort, recorder, (zipf, &chosen), &cublas)
    }

    /// The two products in groups by PyTorch, the better of two layouts of the weights.
    fn in_torch(&self, recorder: &mut Recorder, zipf: bool, chosen: &[i32]) -> Result<()> {
        let MoeOptions { model, hidden, .. } = self.options;
        let counts = counts(chosen);
        let asked = format!(r#"{{"counts": {counts:?}, "model": {model}, "hidden": {hidden}}}"#);
        let all = torch::measure("moe", &asked);
        let best = all.into_iter().min_by(|a, b| a.1.cold.total_cmp(&b.1.cold));
        let Some((variant, times)) = best else {
            return Ok(());
        };
        recorder.add(Row {
            engine: "torch".into(),
            variant,
            note: "products alone; routing, gather, ReLU, weights and scatter left out".into(),
            ..self.row(zipf, chosen, times)
        })
    }

    /// The two products of every expert by itself, its tokens one behind the other; the host knows how many there are.
    fn grouped(
        &self,
        gpu: &Gpu,
        effort: Effort,
        recorder: &mut Recorder,
        (zipf, chosen): (bool, &[i32]),
        cublas: &CuBlas,
    ) -> Result<()> {
        let MoeOptions { model, hidden, .. } = self.options;
        // Experts without a token have no product.
        let counts = counts(chosen).into_iter().enumerate();
        let met: Vec<(usize, usize)> = counts.filter(|(_, count)| *count > 0).collect();
        let [up, down] = self.matrices()?;
        let packed = self.packed(chosen.len())?;
        let (between, out) = (
            Buffer::new(chosen.len() * hidden * 2)?,
            Buffer::new(chosen.len() * model * 2)?,
        );
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
        let (x, h, y) = (
            rows(packed.ptr, model)?,
            rows(between.ptr, hidden)?,
            rows(out.ptr, model)?,
        );
        let (up, down) = (matrices(up)?, matrices(down)?);
        let extents = |k: usize, n: usize| -> Vec<[usize; 3]> {
            met.iter().map(|(_, count)| [*count, k, n]).collect()
        };
        let (first, second) = (extents(model, hidden), extents(hidden, model));
        let times = measure(gpu, effort, &mut || {
            cublas.gemm_grouped(Dtype::Bf16, &first, [&x, &up, &h])?;
            cublas.gemm_grouped(Dtype::Bf16, &second, [&h, &down, &y])
        })?;
        recorder.add(Row {
            engine: "cublas".into(),
            variant: "grouped".into(),
            note: format!(
                "products alone; routing, gather, ReLU, weights and scatter left out{}",
                if times.host_inside {
                    "; waits for the host inside"
                } else {
                    ""
                }
            ),
            ..self.row(zipf, chosen, times)
        })
    }

    /// Where both stacks of matrices lie.
    fn matrices(&self) -> Result<[u64; 2]> {
        match (self.up.address(), self.down.address()) {
            (Some(up), Some(down)) => Ok([up, down]),
            _ => Err("the operands are not on the GPU".into()),
        }
    }

    /// Rows of x, again and again, as many as asked for: which tokens they are of does not matter to a product.
    fn packed(&self, rows: usize) -> Result<Buffer> {
        let packed = Buffer::new(rows * self.options.model * 2)?;
        let source: &[u8] = bytemuck::cast_slice(self.x.values());
        for at in (0..packed.bytes).step_by(source.len()) {
            let bytes = source.len().min(packed.bytes - at);
            packed.write(at, &source[..bytes])?;
        }
        Ok(packed)
    }

    /// Relative error of some tokens' rows, in norm.
    fn error(&self, chosen: &[i32], out: &Tensor<bf16>) -> Result<f64> {
        let MoeOptions {
            model,
            hidden,
            top_k,
            ..
        } = self.options;
        let out = out.to_dense().map_err(text)?;
        let line = |at: usize, width: usize| &self.values[at * width..(at + 1) * width];
        let pairs = (0..CHECKED * top_k).into_par_iter().map(|pair| {
            let token = pair / top_k * (TOKENS / CHECKED) + 5;
            let number = token * top_k + pair % top_k;
            let expert = chosen[number] as usize;
            let mut h = vec![0.0f64; hidden];
            for (i, x) in self.x.values()[token * model..][..model].iter().enumerate() {
                for (h, w) in h.iter_mut().zip(line(expert * model + i, hidden)) {
                    *h += x.to_f64() * w.to_f64();
                }
            }
            let mut y = vec![0.0f64; model];
            for (i, h) in h.iter().enumerate() {
                for (y, w) in y.iter_mut().zip(line(expert * hidden + i, model)) {
                    *y += h.max(0.0) * w.to_f64();
                }
            }
            y.iter_mut()
                .for_each(|y| *y *= f64::from(self.weights[number]));
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

    /// The two products of every expert, padded to the largest, by cuBLAS.
    fn padded(
        &self,
        gpu: &Gpu,
        effort: Effort,
        recorder: &mut Recorder,
        (zipf, chosen): (bool, &[i32]),
        cublas: &CuBlas,
    ) -> Result<()> {
        let MoeOptions { model, hidden, .. } = self.options;
        let most = counts(chosen).into_iter().max().unwrap_or(0);
        let capacity = most.next_multiple_of(8);
        let [up, down] = self.matrices()?;
        let rows = EXPERTS * capacity;
        let packed = self.packed(rows)?;
        let (between, out) = (
            Buffer::new(rows * hidden * 2)?,
            Buffer::new(rows * model * 2)?,
        );
        let times = measure(gpu, effort, &mut || {
            let first = [EXPERTS, capacity, model, hidden];
            cublas.gemm_batched(Dtype::Bf16, first, [packed.ptr, up, between.ptr])?;
            let second = [EXPERTS, capacity, hidden, model];
            cublas.gemm_batched(Dtype::Bf16, second, [between.ptr, down, out.ptr])
        })?;
        recorder.add(Row {
            engine: "cublas".into(),
            variant: "strided batches, padded to the largest expert".into(),
            note: format!(
                "products alone, {:.2}x the rows; routing, gather, ReLU, weights and scatter left out",
                rows as f64 / chosen.len() as f64
            ),
            ..self.row(zipf, chosen, times)
        })
    }
}
