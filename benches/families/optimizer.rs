//! End of a training step: updates of parameters, the loss with its gradient, gradients of dense weights.
//!
//! Updates have `m` parameters, losses `m` rows of `n` classes. Bytes are those read and written once. Results are
//! compared with those of the CPU.

use crate::prelude::*;
use einsparse::Stream;
use einsparse::nn::{Adam, AdamOptions, CrossEntropy, Sgd, SgdOptions, WeightGradient};

pub const OP: &str = "optimizer";
/// Operations of the family.
pub const OPERATIONS: &[Entry] = &[(OP, Own(run))];

/// Parameters of a layer of a small model, and of a large one.
const PARAMETERS: [usize; 2] = [1 << 20, 1 << 26];
/// Rows and classes of a graph's loss, and of a vocabulary's.
const LOSSES: [[usize; 2]; 2] = [[1 << 20, 40], [8192, 32_000]];
/// Rows, inputs, outputs of layers over the vertices of a graph.
const LAYERS: [[usize; 3]; 3] = [[1 << 18, 128, 128], [1 << 18, 128, 40], [1 << 20, 128, 128]];

pub fn run(bench: &Bench<'_>) -> Result<()> {
    for len in PARAMETERS {
        updated(&bench.anew()?, len)?;
    }
    for extents in LOSSES {
        lost(&bench.anew()?, extents)?;
    }
    for extents in LAYERS {
        for dtype in [Dtype::F32, Dtype::Tf32] {
            weighed(&bench.anew()?, extents, dtype)?;
        }
    }
    Ok(())
}

/// Measures a step of each optimizer, with a copy in f16.
fn updated(bench: &Bench<'_>, len: usize) -> Result<()> {
    let row = |name: &str, words: usize, note: &str| {
        Row::new(OP, format!("{name}-{len}"), [len, 0, 0], 0, Dtype::F32)
            .bytes((words * 4 + 2) as f64 * len as f64)
            .note(note)
    };
    let [start, slope] = [0, 1].map(|seed| values::dense::<f32>(&[len], seed, 1.0));
    let sgd = |ctx: &Context| -> Result<Step<f32, 1>> {
        let options = SgdOptions { momentum: 0.9, ..SgdOptions::default() };
        let mut sgd = Sgd::new(ctx, &[len], &options)?;
        let (slope, mut copy) = (ctx.upload_dense(&slope)?, ctx.zeros::<f16>(&[len])?);
        let row = row("sgd", 5, "with momentum, and a copy in f16").ours(sgd.variant());
        let run = move |[w]: &mut [Tensor<f32>; 1], stream: &Stream| {
            Ok(sgd.step_with_copy(w, &slope, &mut copy, stream)?)
        };
        Ok((row, [ctx.upload_dense(&start)?], Box::new(run)))
    };
    bench.against_cpu(sgd, [4e-6])?;
    let adam = |ctx: &Context| -> Result<Step<f32, 1>> {
        let options = AdamOptions { decoupled: true, weight_decay: 0.01, ..AdamOptions::default() };
        let mut adam = Adam::new(ctx, &[len], &options)?;
        let (slope, mut copy) = (ctx.upload_dense(&slope)?, ctx.zeros::<f16>(&[len])?);
        let row = row("adam", 7, "decoupled decay, and a copy in f16").ours(adam.variant());
        let run = move |[w]: &mut [Tensor<f32>; 1], stream: &Stream| {
            Ok(adam.step_with_copy(w, &slope, &mut copy, stream)?)
        };
        Ok((row, [ctx.upload_dense(&start)?], Box::new(run)))
    };
    bench.against_cpu(adam, [4e-6])
}

/// Measures loss and gradient of f32 logits. Every tenth row has no label.
fn lost(bench: &Bench<'_>, shape: [usize; 2]) -> Result<()> {
    let [rows, classes] = shape;
    let logits = values::dense::<f32>(&shape, 0, 1.0);
    let label = |row: usize| {
        if row % 10 == 7 { -1 } else { (row % classes) as i32 }
    };
    let labels = Dense::new([rows], (0..rows).map(label).collect())?;
    let make = |ctx: &Context| -> Result<Step<f32, 2>> {
        let (x, l) = (ctx.upload_dense(&logits)?, ctx.upload_dense(&labels)?);
        let loss = CrossEntropy::<f32>::new(ctx, shape)?;
        let row = Row::new(OP, format!("loss-{rows}x{classes}"), [rows, 0, classes], 0, Dtype::F32)
            .ours(loss.variant())
            .bytes(8.0 * (rows * classes) as f64)
            .note("loss and gradient; a row in ten has no label");
        let run = move |[sum, slopes]: &mut [Tensor<f32>; 2], stream: &Stream| {
            Ok(loss.forward_backward(&x, &l, sum, slopes, stream)?)
        };
        Ok((row, [ctx.zeros(&[1])?, ctx.zeros(&shape)?], Box::new(run)))
    };
    bench.against_cpu(make, [1e-5, 4e-6])
}

/// Measures gradients of weights and bias. Operands are integers, so that the check is exact.
fn weighed(bench: &Bench<'_>, extents: [usize; 3], dtype: Dtype) -> Result<()> {
    let [rows, inputs, outputs] = extents;
    let whole = |shape: [usize; 2], seed: usize| -> Result<Dense<f32>> {
        let values = values::<f32>(shape[0] * shape[1], seed, 2.0);
        Ok(Dense::new(shape, values.into_iter().map(f32::round).collect())?)
    };
    let (x, dy) = (whole([rows, inputs], 0)?, whole([rows, outputs], 1)?);
    let make = |ctx: &Context| -> Result<Step<f32, 2>> {
        let (x, dy) = (ctx.upload_dense(&x)?, ctx.upload_dense(&dy)?);
        let precision = precise(dtype).precision;
        let gradient = WeightGradient::<f32>::with_precision(ctx, extents, precision)?;
        let row = Row::new(OP, format!("weights-{rows}"), [inputs, rows, outputs], 0, dtype)
            .ours(gradient.variant())
            .flops(2.0 * (rows * inputs * outputs) as f64)
            .bytes(4.0 * (rows * (inputs + outputs)) as f64)
            .prepared(None, gradient.workspace_bytes())
            .note("with the gradient of the bias");
        let run = move |[dw, db]: &mut [Tensor<f32>; 2], stream: &Stream| {
            Ok(gradient.backward_weight(&x, &dy, dw, Some(db), stream)?)
        };
        Ok((row, [ctx.zeros(&[inputs, outputs])?, ctx.zeros(&[outputs])?], Box::new(run)))
    };
    bench.against_cpu(make, [0.0; 2])
}
