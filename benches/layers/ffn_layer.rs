//! Feed-forward layer with ReLU, 5120 -> 20480 -> 5120 in bf16. Nine tenths of its hidden activations are never above
//! zero. The baseline is the two products alone by cuBLAS. In both, the first product reads all of its weights.
//!
//! `nnz` is the elements of the first weights; rates count both whole products.

use crate::prelude::*;
use einsparse::nn::FeedForward;

pub const OP: &str = "ffn_layer";
/// Inputs and outputs, and hidden activations.
const WIDTH: usize = 5120;
const HIDDEN: usize = 20_480;
const TOKENS: [usize; 3] = [1, 32, 512];

/// Pool from which millions of random values are drawn.
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
    /// Nine tenths of the columns of the first weights are negative; inputs are not.
    fn new(bench: &Bench<'_>, rng: &mut StdRng) -> Result<Self> {
        let mut pool = Pool::new(rng);
        let below: Vec<bool> = (0..HIDDEN).map(|_| rng.random_range(0..10) != 0).collect();
        let u = (0..WIDTH * HIDDEN).map(|i| {
            let x = pool.next() / 16.0;
            bf16::from_f32(if below[i % HIDDEN] { -x.abs() } else { x })
        });
        let u = Dense::new([WIDTH, HIDDEN], u.collect())?;
        let w = (0..WIDTH * HIDDEN).map(|_| bf16::from_f32(pool.next()));
        let w = Dense::new([HIDDEN, WIDTH], w.collect())?;
        Ok(Layer { there: [bench.upload(&u)?, bench.upload(&w)?], weights: [u, w] })
    }

    /// Max error of the first and the last token, in multiples of the error that rounding explains.
    fn error(&self, x: &Dense<bf16>, y: &Tensor<bf16>) -> Result<f64> {
        let y = y.to_dense()?;
        let tokens = x.shape()[0];
        let [u, w] = &self.weights;
        let mut worst: f64 = 0.0;
        for token in [0, tokens - 1] {
            let mut hidden = vec![Sum::default(); HIDDEN];
            for i in 0..WIDTH {
                let factor = x.values()[token * WIDTH + i].to_f64();
                for (sum, v) in hidden.iter_mut().zip(&u.values()[i * HIDDEN..][..HIDDEN]) {
                    sum.add(factor * v.to_f64());
                }
            }
            let (mut wanted, mut bound) = (vec![0.0; WIDTH], vec![0.0; WIDTH]);
            for (h, Sum { value, size }) in hidden.into_iter().enumerate() {
                // Half a unit of bf16, and sums in f32.
                let slack = value.abs() * f64::powi(2.0, -8) + size * f64::powi(2.0, -16);
                if value + slack <= 0.0 {
                    continue;
                }
                for (o, v) in w.values()[h * WIDTH..][..WIDTH].iter().enumerate() {
                    wanted[o] += value.max(0.0) * v.to_f64();
                    bound[o] += slack * v.to_f64().abs();
                }
            }
            for (o, found) in y.values()[token * WIDTH..][..WIDTH].iter().enumerate() {
                let bound = bound[o] + wanted[o].abs() * f64::powi(2.0, -8);
                worst = worse(worst, (found.to_f64() - wanted[o]).abs() / bound);
            }
        }
        Ok(worst)
    }
}

fn row(tokens: usize, times: &Times) -> Row {
    let (extents, workload) = ([tokens, WIDTH, HIDDEN], format!("ffn-layer-m{tokens}-e0.9"));
    Row::new(OP, workload, extents, WIDTH * HIDDEN, Dtype::Bf16)
        .timed(times)
        .flops(4.0 * (tokens * WIDTH * HIDDEN) as f64)
        .dense()
}

pub fn run(bench: &Bench<'_>) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(SEED + 9);
    let layer = Layer::new(bench, &mut rng)?;
    let [u, w] = &layer.there;
    for tokens in TOKENS {
        let values = (0..tokens * WIDTH).map(|_| bf16::from_f32(rng.random_range(0.0..1.0)));
        let x = Dense::new([tokens, WIDTH], values.collect())?;
        let x_there = bench.upload(&x)?;
        let mut y = bench.zeros(&[tokens, WIDTH])?;
        let (extents, options) = ([tokens, WIDTH, HIDDEN, WIDTH], Default::default());
        let mut ours = FeedForward::<bf16>::new(&bench.context, extents, &options)?;
        let times = bench.measure(|| ours.forward([&x_there, u, w], &mut y, &bench.stream))?;
        let error = layer.error(&x, &y)?;
        let row_of_ours = row(tokens, &times).ours(ours.variants().join("+"));
        let note = format!("err {error:.2} of the bound");
        bench.add(row_of_ours.judged(error <= 1.0, note))?;
        let Ok(cublas) = CuBlas::open(bench.gpu, false) else {
            continue;
        };
        let (a, u, w) = (at(&x_there)?, at(u)?, at(w)?);
        let h = Buffer::new(tokens * HIDDEN * 2)?;
        let c = Buffer::new(tokens * WIDTH * 2)?;
        let times = bench.measure(|| {
            cublas.gemm(Dtype::Bf16, [tokens, WIDTH, HIDDEN], [a, u, h.ptr])?;
            cublas.gemm(Dtype::Bf16, [tokens, HIDDEN, WIDTH], [h.ptr, w, c.ptr])
        })?;
        let row = row(tokens, &times).by("cublas", "two dense products");
        bench.add(row.note("without the ReLU between them"))?;
    }
    Ok(())
}
