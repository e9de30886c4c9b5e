//! A training step of the layer: forward and backward in a row, since backward weights the hidden rows of its forward in place.

use super::{CHECKED, EXPERTS, HBM, Layer, TENSOR_CORES, TOKENS, choices, text};
use crate::device::{Gpu, Result};
use crate::record::{Recorder, Row};
use crate::timing::{Effort, measure};
use einsparse::formats::{Dense, bf16};
use einsparse::ops::{MoeGradients, MoeLayer, MoeOptions};
use einsparse::{Stream, Tensor};
use rayon::prelude::*;

impl Layer<'_> {
    /// Forward and backward; the gradient of the output is x.
    pub(super) fn step(
        &self,
        gpu: &Gpu,
        effort: Effort,
        recorder: &mut Recorder,
        zipf: bool,
    ) -> Result<()> {
        let MoeOptions {
            model,
            hidden,
            top_k,
            ..
        } = self.options;
        let chosen = choices(top_k, zipf);
        let there = Dense::new([TOKENS, top_k], chosen.clone()).map_err(text)?;
        let there = self.context.upload_dense(&there).map_err(text)?;
        let weights = Dense::new([TOKENS, top_k], self.weights.clone()).map_err(text)?;
        let weights = self.context.upload_dense(&weights).map_err(text)?;
        // SAFETY: the bench's stream belongs to the primary context and outlives every case.
        let stream = unsafe { Stream::from_raw(gpu.stream.cast()) };
        let layer = MoeLayer::<bf16>::for_training(&self.context, self.options);
        let mut layer = layer.map_err(text)?;
        let zeros = |shape: &[usize]| self.context.zeros::<bf16>(shape).map_err(text);
        let (mut out, mut dx) = (zeros(&[TOKENS, model])?, zeros(&[TOKENS, model])?);
        let mut dup = zeros(&[EXPERTS, model, hidden])?;
        let mut ddown = zeros(&[EXPERTS, hidden, model])?;
        let mut dweights = self.context.zeros::<f32>(&[TOKENS, top_k]).map_err(text)?;
        let times = measure(gpu, effort, &mut || {
            let matrices = (&self.up, &self.down);
            let x = &self.x_there;
            layer
                .run(x, (&there, &weights), matrices, &mut out, &stream)
                .map_err(text)?;
            let gradients = MoeGradients {
                x: &mut dx,
                weights: &mut dweights,
                up: &mut dup,
                down: &mut ddown,
            };
            layer
                .backward((x, &weights), matrices, x, gradients, &stream)
                .map_err(text)
        })?;
        let error = self.gradient_error(&chosen, &dx, &dweights)?;
        let row = self.row(zipf, &chosen, times);
        let flops = 12.0 * (chosen.len() * model * hidden) as f64;
        // Both stacks twice, both gradients once.
        let bytes = 2.0 * (6 * EXPERTS * model * hidden) as f64;
        let floor = (bytes / HBM).max(flops / TENSOR_CORES) * 1e3;
        recorder.add(Row {
            workload: format!("{}-step", row.workload),
            engine: "einsparse".into(),
            variant: layer.variants().join(" + "),
            gflops: Some(flops / times.cold / 1e6),
            gbps: Some(bytes / times.cold / 1e6),
            limit_fraction: Some(floor / times.cold),
            note: format!(
                "{}forward and backward; err of the gradients of x and weights {error:.1e}",
                if error < 0.01 { "" } else { "WRONG: " }
            ),
            ..row
        })
    }

    /// Relative error, in norm, of the gradients of some tokens and their weights.
    fn gradient_error(
        &self,
        chosen: &[i32],
        dx: &Tensor<bf16>,
        dweights: &Tensor<f32>,
    ) -> Result<f64> {
        let MoeOptions {
            model,
            hidden,
            top_k,
            ..
        } = self.options;
        let (dx, dweights) = (
            dx.to_dense().map_err(text)?,
            dweights.to_dense().map_err(text)?,
        );
        let line = |at: usize, width: usize| &self.values[at * width..(at + 1) * width];
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
                let mut h = vec![0.0f64; hidden];
                for (i, x) in x.iter().enumerate() {
                    for (h, w) in h.iter_mut().zip(line(expert * model + i, hidden)) {
                        *h += x * w.to_f64();
                    }
                }
                let through = |j: usize| match h[j] > 0.0 {
                    true => dot(&x, line(expert * hidden + j, model)),
                    false => 0.0,
                };
                let g: Vec<f64> = (0..hidden).map(through).collect();
                let dw: f64 = h.iter().zip(&g).map(|(h, g)| h * g).sum();
                off += (f64::from(dweights.values()[number]) - dw).powi(2);
                size += dw.powi(2);
                for (i, wanted) in wanted.iter_mut().enumerate() {
                    *wanted += weight * dot(&g, line(expert * model + i, hidden));
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
        let sums = tokens.reduce(
            || [0.0; 4],
            |a, b| [a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]],
        );
        let error = (sums[0] / sums[1]).max(sums[2] / sums[3]).sqrt();
        Ok(if sums.iter().any(|s| s.is_nan()) {
            f64::INFINITY
        } else {
            error
        })
    }
}
