//! A whole feed-forward layer with ReLU, 5120 -> 20480 -> 5120 in bf16, of whose hidden activations nine tenths are never above zero:
//! ours, and the two products alone by cuBLAS. The first product reads all of its weights either way.
//!
//! `nnz` are the elements of the first weights; rates count both products whole.

use crate::device::{Buffer, Gpu, Result};
use crate::peers::cublas::CuBlas;
use crate::problems::{Dtype, SEED};
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::formats::{Dense, bf16};
use einsparse::ops::ReluFeedForward;
use einsparse::{Context, Stream, Tensor};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::fmt::Display;

/// The name that `--op` knows.
pub const OP: &str = "ffn_layer";
/// Inputs and outputs, and hidden activations.
const WIDTH: usize = 5120;
const HIDDEN: usize = 20_480;
const TOKENS: [usize; 3] = [1, 32, 512];

fn text(e: impl Display) -> String {
    e.to_string()
}

/// Values of a pool, each time others: millions are wanted.
struct Pool {
    values: Vec<f32>,
    state: u64,
}

impl Pool {
    fn new(rng: &mut StdRng) -> Self {
        Pool {
            values: (0..4096).map(|_| rng.random_range(-1.0..1.0)).collect(),
            state: rng.random::<u64>() | 1,
        }
    }

    fn next(&mut self) -> f32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.values[(self.state >> 20) as usize % 4096]
    }
}

struct Layer {
    weights: [Dense<bf16>; 2],
    there: [Tensor<bf16>; 2],
}

impl Layer {
    /// Nine tenths of the first weights' columns are below zero; inputs are not.
    fn new(context: &Context, rng: &mut StdRng) -> Result<Self> {
        let mut pool = Pool::new(rng);
        let below: Vec<bool> = (0..HIDDEN).map(|_| rng.random_range(0..10) != 0).collect();
        let u = (0..WIDTH * HIDDEN).map(|i| {
            let x = pool.next() / 16.0;
            bf16::from_f32(if below[i % HIDDEN] { -x.abs() } else { x })
        });
        let u = Dense::new([WIDTH, HIDDEN], u.collect()).map_err(text)?;
        let w = (0..WIDTH * HIDDEN).map(|_| bf16::from_f32(pool.next()));
        let w = Dense::new([HIDDEN, WIDTH], w.collect()).map_err(text)?;
        let upload = |dense: &Dense<bf16>| context.upload_dense(dense).map_err(text);
        Ok(Layer {
            there: [upload(&u)?, upload(&w)?],
            weights: [u, w],
        })
    }

    /// The worst error of the first and the last token, in multiples of what rounding explains.
    fn error(&self, x: &Dense<bf16>, y: &Tensor<bf16>) -> Result<f64> {
        let y = y.to_dense().map_err(text)?;
        let tokens = x.shape()[0];
        let [u, w] = &self.weights;
        let mut worst: f64 = 0.0;
        for token in [0, tokens - 1] {
            let (mut hidden, mut size) = (vec![0.0; HIDDEN], vec![0.0; HIDDEN]);
            for i in 0..WIDTH {
                let factor = x.values()[token * WIDTH + i].to_f64();
                for (h, v) in u.values()[i * HIDDEN..(i + 1) * HIDDEN].iter().enumerate() {
                    hidden[h] += factor * v.to_f64();
                    size[h] += (factor * v.to_f64()).abs();
                }
            }
            let (mut wanted, mut bound) = (vec![0.0; WIDTH], vec![0.0; WIDTH]);
            for h in 0..HIDDEN {
                // A half unit of bf16, and sums in f32.
                let slack = hidden[h].abs() * f64::powi(2.0, -8) + size[h] * f64::powi(2.0, -16);
                if hidden[h] + slack <= 0.0 {
                    continue;
                }
                for (o, v) in w.values()[h * WIDTH..(h + 1) * WIDTH].iter().enumerate() {
                    wanted[o] += hidden[h].max(0.0) * v.to_f64();
                    bound[o] += slack * v.to_f64().abs();
                }
            }
            for (o, found) in y.values()[token * WIDTH..(token + 1) * WIDTH]
                .iter()
                .enumerate()
            {
                let bound = bound[o] + wanted[o].abs() * f64::powi(2.0, -8);
                let share = (found.to_f64() - wanted[o]).abs() / bound;
                worst = if share.is_nan() {
                    f64::INFINITY
                } else {
                    worst.max(share)
                };
            }
        }
        Ok(worst)
    }
}

fn row(tokens: usize, times: Times) -> Row {
    Row {
        op: OP.into(),
        workload: format!("ffn-layer-m{tokens}-e0.9"),
        m: tokens,
        k: WIDTH,
        n: HIDDEN,
        nnz: WIDTH * HIDDEN,
        dtype: "bf16".into(),
        ms: times.cold,
        ms_warm: Some(times.warm),
        gflops: Some(4.0 * (tokens * WIDTH * HIDDEN) as f64 / times.cold / 1e6),
        zeros: "dense".into(),
        ..Row::default()
    }
}

/// All numbers of tokens.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    // SAFETY: the bench's stream belongs to the primary context and outlives every case.
    let stream = unsafe { Stream::from_raw(gpu.stream.cast()) };
    let mut rng = StdRng::seed_from_u64(SEED + 9);
    let layer = Layer::new(&context, &mut rng)?;
    let [u, w] = &layer.there;
    for tokens in TOKENS {
        let values = (0..tokens * WIDTH).map(|_| bf16::from_f32(rng.random_range(0.0..1.0)));
        let x = Dense::new([tokens, WIDTH], values.collect()).map_err(text)?;
        let x_there = context.upload_dense(&x).map_err(text)?;
        let mut y = context.zeros(&[tokens, WIDTH]).map_err(text)?;
        let extents = [tokens, WIDTH, HIDDEN, WIDTH];
        let made = ReluFeedForward::<bf16>::new(&context, extents, &Default::default());
        let mut ours = made.map_err(text)?;
        let times = measure(gpu, effort, &mut || {
            ours.run([&x_there, u, w], &mut y, &stream).map_err(text)
        })?;
        let error = layer.error(&x, &y)?;
        let right = error <= 1.0;
        recorder.add(Row {
            engine: "einsparse".into(),
            variant: ours.variants().join("+"),
            ms: if right { times.cold } else { f64::NAN },
            note: format!(
                "{}err {error:.2} of the bound",
                if right { "" } else { "WRONG: " }
            ),
            ..row(tokens, times)
        })?;
        let Ok(cublas) = CuBlas::open(gpu, false) else {
            continue;
        };
        let (Some(a), Some(u), Some(w)) = (x_there.address(), u.address(), w.address()) else {
            return Err("the operands are not on the GPU".into());
        };
        let (h, c) = (
            Buffer::new(tokens * HIDDEN * 2)?,
            Buffer::new(tokens * WIDTH * 2)?,
        );
        let times = measure(gpu, effort, &mut || {
            cublas.gemm(Dtype::Bf16, [tokens, WIDTH, HIDDEN], [a, u, h.ptr])?;
            cublas.gemm(Dtype::Bf16, [tokens, HIDDEN, WIDTH], [h.ptr, w, c.ptr])
        })?;
        recorder.add(Row {
            engine: "cublas".into(),
            variant: "two dense products".into(),
            note: "without the ReLU between them".into(),
            ..row(tokens, times)
        })?;
    }
    Ok(())
}
