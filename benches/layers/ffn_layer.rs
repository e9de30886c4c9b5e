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

struct Layer {
    weights: [Dense<bf16>; 2],
    there: [Tensor<bf16>; 2],
}

impl Layer {
    /// Nine tenths of the columns of the first weights are negative; inputs are not.
    fn new(bench: &Bench<'_>, rng: &mut StdRng) -> Result<Self> {
        let below: Vec<bool> = (0..HIDDEN).map(|_| rng.random_range(0..10) != 0).collect();
        let u = values::<bf16>(WIDTH * HIDDEN, 1, 1.0 / 16.0).into_iter().enumerate();
        let u = u.map(|(i, x)| match below[i % HIDDEN] && x > bf16::ZERO {
            true => -x,
            false => x,
        });
        let u = Dense::new([WIDTH, HIDDEN], u.collect())?;
        let w = values::dense::<bf16>(&[HIDDEN, WIDTH], 2, 1.0);
        Ok(Layer { there: bench.uploads([&u, &w])?, weights: [u, w] })
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
                add_line(&mut hidden, factor, &u.values()[i * HIDDEN..]);
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

pub fn run(bench: &Bench<'_>) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(SEED + 9);
    let layer = Layer::new(bench, &mut rng)?;
    let [u, w] = &layer.there;
    for tokens in TOKENS {
        let x = (0..tokens * WIDTH).map(|_| bf16::from_f32(rng.random_range(0.0..1.0)));
        let x = Dense::new([tokens, WIDTH], x.collect())?;
        let there = bench.upload(&x)?;
        let workload = format!("ffn-layer-m{tokens}-e0.9");
        let row = Row::new(OP, workload, [tokens, WIDTH, HIDDEN], WIDTH * HIDDEN, Dtype::Bf16)
            .flops(4.0 * (tokens * WIDTH * HIDDEN) as f64)
            .dense();
        let (extents, options) = ([tokens, WIDTH, HIDDEN, WIDTH], Default::default());
        let mut ours = FeedForward::<bf16>::new(&bench.context, extents, &options)?;
        bench.checked(
            row.clone().ours(ours.variants().join("+")),
            &mut bench.poisoned(&[tokens, WIDTH])?,
            |y| ours.forward([&there, u, w], y, &bench.stream),
            |y| layer.error(&x, y),
        )?;
        let Some(cublas) = bench.cublas(false) else {
            continue;
        };
        let (a, u, w) = (at(&there)?, at(u)?, at(w)?);
        let h = Buffer::new(tokens * HIDDEN * 2)?;
        let c = Buffer::new(tokens * WIDTH * 2)?;
        let row = row.by("cublas", "two dense products").note("without the ReLU between them");
        bench.time(row, || {
            let (up, down) = ([tokens, WIDTH, HIDDEN], [tokens, HIDDEN, WIDTH]);
            cublas.gemm(Dtype::Bf16, up, [a, u, h.ptr], Order::Rows)?;
            cublas.gemm(Dtype::Bf16, down, [h.ptr, w, c.ptr], Order::Rows)
        })?;
    }
    Ok(())
}
