//! Training step of the layer. Forward and backward run alternately, because backward multiplies the hidden rows of its
//! forward by the weights in place.

use super::{CHECKED, EXPERTS, Layer, Model, Routed, TOKENS, rated};
use crate::prelude::*;
use einsparse::nn::{Moe, MoeGradients, MoeInputs, MoeOptions};
use rayon::prelude::*;

impl Layer<'_> {
    /// Times forward and backward. The gradient of the output is x.
    pub(super) fn step(&self, routed: &Routed) -> Result<()> {
        let MoeOptions { model, hidden, top_k, .. } = self.options;
        let (bench, stream) = (self.bench, &self.bench.stream);
        let (x, there, weights) = (&self.x, &routed.there, &routed.weights);
        let mut layer = Moe::<bf16>::for_training(&bench.context, &self.options)?;
        let zeros = |shape: &[usize]| bench.zeros::<bf16>(shape);
        let (mut out, mut dx) = (zeros(&[TOKENS, model])?, zeros(&[TOKENS, model])?);
        let mut dup = zeros(&[EXPERTS, model, hidden])?;
        let mut ddown = zeros(&[EXPERTS, hidden, model])?;
        let mut dweights = bench.zeros::<f32>(&[TOKENS, top_k])?;
        let (up, down) = ((&self.up).into(), (&self.down).into());
        let inputs = MoeInputs { x, choices: there, weights, up, down };
        let times = bench.measure(|| {
            layer.forward(&inputs, &mut out, stream)?;
            let gradients =
                MoeGradients { x: &mut dx, weights: &mut dweights, up: &mut dup, down: &mut ddown };
            layer.backward(&inputs, x, gradients, stream)
        })?;
        let error = self.model.gradient_error(&routed.chosen, &dx, &dweights)?;
        let row = self.row(routed, &times).ours(layer.variants().join(" + "));
        let flops = 12.0 * (routed.chosen.len() * model * hidden) as f64;
        // Both stacks are read twice, both gradients are written once.
        let row = rated(row, flops, 2.0 * (6 * EXPERTS * model * hidden) as f64);
        let note =
            format!("forward and backward; err of the gradients of x and weights {error:.1e}");
        bench.add(Row {
            workload: format!("{}-step", row.workload),
            ..row.judged(error < 0.01, note)
        })
    }
}

impl Model<'_> {
    /// Relative error, in norm, of the gradients of some tokens and their weights.
    fn gradient_error(
        &self,
        chosen: &[i32],
        dx: &Tensor<bf16>,
        dweights: &Tensor<f32>,
    ) -> Result<f64> {
        let MoeOptions { model, hidden, top_k, .. } = self.options;
        let (dx, dweights) = (dx.to_dense()?, dweights.to_dense()?);
        let dot =
            |a: &[f64], b: &[bf16]| -> f64 { a.iter().zip(b).map(|(x, y)| x * y.to_f64()).sum() };
        let tokens = (0..CHECKED).into_par_iter().map(|i| {
            let token = i * (TOKENS / CHECKED) + 5;
            let x = &self.x.values()[token * model..][..model];
            let x: Vec<f64> = x.iter().map(|v| v.to_f64()).collect();
            let mut wanted = vec![0.0f64; model];
            let [mut off, mut size] = [0.0f64; 2];
            for j in 0..top_k {
                let number = token * top_k + j;
                let (expert, weight) = (chosen[number] as usize, f64::from(self.weights[number]));
                let h = self.hidden(token, expert);
                let through = |j: usize| match h[j] > 0.0 {
                    true => dot(&x, self.line(expert * hidden + j, model)),
                    false => 0.0,
                };
                let g: Vec<f64> = (0..hidden).map(through).collect();
                let dw: f64 = h.iter().zip(&g).map(|(h, g)| h * g).sum();
                off += (f64::from(dweights.values()[number]) - dw).powi(2);
                size += dw.powi(2);
                for (i, wanted) in wanted.iter_mut().enumerate() {
                    *wanted += weight * dot(&g, self.line(expert * model + i, hidden));
                }
            }
            let found = &dx.values()[token * model..][..model];
            let [mut off_x, mut size_x] = [0.0f64; 2];
            for (found, wanted) in found.iter().zip(&wanted) {
                off_x += (found.to_f64() - wanted).powi(2);
                size_x += wanted.powi(2);
            }
            [off, size, off_x, size_x]
        });
        let sums =
            tokens.reduce(|| [0.0; 4], |a, b| [a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]]);
        let error = (sums[0] / sums[1]).max(sums[2] / sums[3]).sqrt();
        Ok(if sums.iter().any(|s| s.is_nan()) { f64::INFINITY } else { error })
    }
}
