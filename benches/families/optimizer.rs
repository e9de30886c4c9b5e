//! End of a training step: updates of parameters, the loss with its gradient, gradients of dense weights.
//!
//! Updates have `m` parameters, losses `m` rows of `n` classes. Bytes are those read and written once.

use crate::operations::{Entry, Own};
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

fn values(len: usize, seed: u64) -> Vec<f32> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-1.0..1.0)).collect()
}

/// Whether all differences are explained by a few roundings in f32.
fn near(found: &Tensor<f32>, wanted: &Tensor<f32>, within: f64) -> Result<bool> {
    let (found, wanted) = (found.to_dense()?, wanted.to_dense()?);
    let far = |(a, b): (&f32, &f32)| {
        let (a, b) = (f64::from(*a), f64::from(*b));
        (a - b).abs() > within * (1.0 + b.abs()) || a.is_nan()
    };
    Ok(!found.values().iter().zip(wanted.values()).any(far))
}

/// Measures a step of each optimizer, with a copy in f16.
fn updated(bench: &Bench<'_>, len: usize) -> Result<()> {
    let (start, slope) = (values(len, SEED), values(len, SEED + 1));
    let cpu = Context::cpu();
    let row = |name: &str, words: usize, times: &Times| {
        Row::new(OP, format!("{name}-{len}"), [len, 0, 0], 0, Dtype::F32)
            .timed(times)
            .bytes((words * 4 + 2) as f64 * len as f64)
    };
    let upload = |ctx: &Context, values: &[f32]| -> Result<Tensor<f32>> {
        Ok(ctx.upload_dense(&Dense::new([len], values.to_vec())?)?)
    };
    // The first step of both optimizers is checked; the others are timed.
    let (mut sgd, mut adam) = (SgdOptions::default(), AdamOptions::default());
    (sgd.momentum, adam.decoupled, adam.weight_decay) = (0.9, true, 0.01);
    let first = |ctx: &Context, stream: &Stream| -> Result<_> {
        let slope = upload(ctx, &slope)?;
        let (mut a, mut b) = (upload(ctx, &start)?, upload(ctx, &start)?);
        let mut copy = ctx.zeros::<f16>(&[len])?;
        let mut sgd = Sgd::new(ctx, &[len], &sgd)?;
        let mut adam = Adam::new(ctx, &[len], &adam)?;
        sgd.step_with_copy(&mut a, &slope, &mut copy, stream)?;
        adam.step_with_copy(&mut b, &slope, &mut copy, stream)?;
        stream.synchronize()?;
        Ok((sgd, adam, [a, b], slope, copy))
    };
    let (mut sgd, mut adam, [mut a, mut b], slope, mut copy) =
        first(&bench.context, &bench.stream)?;
    let (_, _, wanted, _, _) = first(&cpu, &cpu.stream()?)?;
    let right = [near(&a, &wanted[0], 4e-6)?, near(&b, &wanted[1], 4e-6)?];
    let times = bench.measure(|| sgd.step_with_copy(&mut a, &slope, &mut copy, &bench.stream))?;
    let told = row("sgd", 5, &times).ours(sgd.variant());
    bench.add(told.judged(right[0], "with momentum, and a copy in f16"))?;
    let times = bench.measure(|| adam.step_with_copy(&mut b, &slope, &mut copy, &bench.stream))?;
    let told = row("adam", 7, &times).ours(adam.variant());
    bench.add(told.judged(right[1], "decoupled decay, and a copy in f16"))
}

/// Measures loss and gradient of f32 logits. Every tenth row has no label.
fn lost(bench: &Bench<'_>, [rows, classes]: [usize; 2]) -> Result<()> {
    let shape = [rows, classes];
    let logits = Dense::new(shape, values(rows * classes, SEED))?;
    let label = |row: usize| {
        if row % 10 == 7 { -1 } else { (row % classes) as i32 }
    };
    let labels = Dense::new([rows], (0..rows).map(label).collect())?;
    let made = |ctx: &Context| -> Result<_> {
        let tensors = (ctx.upload_dense(&logits)?, ctx.upload_dense(&labels)?);
        let results = (ctx.zeros::<f32>(&[1])?, ctx.zeros::<f32>(&shape)?);
        Ok((CrossEntropy::<f32>::new(ctx, shape)?, tensors, results))
    };
    let (loss_of, (x, l), (mut loss, mut gradient)) = made(&bench.context)?;
    let times = bench
        .measure(|| loss_of.forward_backward(&x, &l, &mut loss, &mut gradient, &bench.stream))?;
    let cpu = Context::cpu();
    let (reference, (x, l), (mut wanted, mut slopes)) = made(&cpu)?;
    reference.forward_backward(&x, &l, &mut wanted, &mut slopes, &cpu.stream()?)?;
    // An element of the gradient is at most 1 / rows.
    let within = 4e-6 / rows as f64;
    let right = near(&loss, &wanted, 1e-5)? && near(&gradient, &slopes, within)?;
    let row = Row::new(OP, format!("loss-{rows}x{classes}"), [rows, 0, classes], 0, Dtype::F32);
    let row = row.timed(&times).ours(loss_of.variant());
    let bytes = 8.0 * (rows * classes) as f64;
    bench.add(row.bytes(bytes).judged(right, "loss and gradient; a row in ten has no label"))
}

/// Measures gradients of weights and bias. Operands are integers, so that the check is exact.
fn weighed(bench: &Bench<'_>, extents: [usize; 3], dtype: Dtype) -> Result<()> {
    let [rows, inputs, outputs] = extents;
    let whole = |shape: [usize; 2], seed: u64| -> Result<Dense<f32>> {
        let values = values(shape[0] * shape[1], seed);
        let values = values.iter().map(|x| (2.0 * x).round());
        Ok(Dense::new(shape, values.collect())?)
    };
    let (x, dy) = (whole([rows, inputs], SEED)?, whole([rows, outputs], SEED + 1)?);
    let made = |ctx: &Context| -> Result<_> {
        let operands = [ctx.upload_dense(&x)?, ctx.upload_dense(&dy)?];
        let results = (ctx.zeros::<f32>(&[inputs, outputs])?, ctx.zeros::<f32>(&[outputs])?);
        let precision = precise(dtype).precision;
        let gradient = WeightGradient::<f32>::with_precision(ctx, extents, precision)?;
        Ok((gradient, operands, results))
    };
    let (own, [x, dy], (mut dw, mut db)) = made(&bench.context)?;
    let times =
        bench.measure(|| own.backward_weight(&x, &dy, &mut dw, Some(&mut db), &bench.stream))?;
    let cpu = Context::cpu();
    let (reference, [x, dy], (mut wanted, mut bias)) = made(&cpu)?;
    reference.backward_weight(&x, &dy, &mut wanted, Some(&mut bias), &cpu.stream()?)?;
    let right = near(&dw, &wanted, 0.0)? && near(&db, &bias, 0.0)?;
    let row = Row::new(OP, format!("weights-{rows}"), [inputs, rows, outputs], 0, dtype);
    let row = row
        .timed(&times)
        .ours(own.variant())
        .flops(2.0 * (rows * inputs * outputs) as f64)
        .bytes(4.0 * (rows * (inputs + outputs)) as f64)
        .prepared(None, own.workspace_bytes());
    bench.add(row.judged(right, "with the gradient of the bias"))
}
