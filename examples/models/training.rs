//! Training of [`Gcn`](super::gcn::Gcn) on a whole graph: steps and their results.

use einsparse::nn::{Adam, AdamOptions, Sgd, SgdOptions};
use einsparse::{Context, Result, Stream};

use super::common::{Measured, Memory, Run, largest_error, wide};
use super::gcn::Gcn;
use super::graphs::{Kind, Task, planted, rmat};

enum Optimiser {
    Sgd(Sgd),
    Adam(Adam),
}

/// A model, and an optimizer for each of its parameters.
pub struct Training {
    pub model: Gcn<f32>,
    optimisers: Vec<Optimiser>,
}

impl Training {
    pub fn new(ctx: &Context, mut model: Gcn<f32>, adam: bool) -> Result<Self> {
        let optimiser = |shape: &[usize]| -> Result<Optimiser> {
            let (sgd, rate) = (SgdOptions { rate: 0.1, momentum: 0.9, ..Default::default() }, 0.01);
            Ok(match adam {
                true => Optimiser::Adam(Adam::new(
                    ctx,
                    shape,
                    &AdamOptions { rate, ..Default::default() },
                )?),
                false => Optimiser::Sgd(Sgd::new(ctx, shape, &sgd)?),
            })
        };
        let shapes: Vec<_> = model.parameters().map(|p| p.value.shape().to_vec()).collect();
        let optimisers = shapes.iter().map(|shape| optimiser(shape)).collect::<Result<_>>()?;
        Ok(Training { model, optimisers })
    }

    /// Runs forward, loss, backward, and the update of all parameters.
    pub fn step(&mut self, stream: &Stream) -> Result<()> {
        self.model.forward(stream)?;
        self.model.backward(stream)?;
        for (parameter, optimiser) in self.model.parameters().zip(&mut self.optimisers) {
            let (value, gradient) = (&mut parameter.value, &parameter.gradient);
            match optimiser {
                Optimiser::Sgd(sgd) => sgd.step(value, gradient, stream)?,
                Optimiser::Adam(adam) => adam.step(value, gradient, stream)?,
            }
        }
        Ok(())
    }

    /// Runs `steps` steps. Returns all parameters after them, and the loss of the last step.
    pub fn run(&mut self, ctx: &Context, steps: usize) -> Result<(Vec<f32>, f32)> {
        let stream = ctx.stream()?;
        (0..steps).try_for_each(|_| self.step(&stream))?;
        stream.synchronize()?;
        let mut all = Vec::new();
        for parameter in self.model.parameters() {
            all.extend(parameter.value.to_dense()?.into_values());
        }
        Ok((all, self.model.loss.to_dense()?.values()[0]))
    }
}

/// Whether two trainings end with the same bits.
pub fn repeats(
    ctx: &Context,
    kind: Kind,
    task: &Task<f32>,
    widths: [usize; 4],
    steps: usize,
) -> Result<bool> {
    let train =
        || Training::new(ctx, Gcn::new(ctx, kind, task, widths, false)?, true)?.run(ctx, steps);
    let bits = |(all, loss): (Vec<f32>, f32)| -> Vec<u32> {
        all.iter().chain([&loss]).map(|x| x.to_bits()).collect()
    };
    Ok(bits(train()?) == bits(train()?))
}

/// Share of vertices without a label whose community is found, after training on a planted partition.
pub fn accuracy(ctx: &Context, kind: Kind, adam: bool) -> Result<f64> {
    let task = planted(400, 16, 4)?;
    let model = Gcn::new(ctx, kind, &task, [16, 16, 16, 4], false)?;
    let mut training = Training::new(ctx, model, adam)?;
    training.run(ctx, 100)?;
    let logits = training.model.logits().to_dense()?;
    let found = |row: usize| {
        let row = &logits.values()[row * 4..][..4];
        (0..4).max_by(|&a, &b| row[a].total_cmp(&row[b]))
    };
    let asked = (0..400).filter(|&v| task.labels[v] < 0);
    let (mut right, mut all) = (0, 0);
    for vertex in asked {
        right += usize::from(found(vertex) == Some(task.classes[vertex] as usize));
        all += 1;
    }
    Ok(f64::from(right as u32) / f64::from(all))
}

/// Largest error of logits and of gradients against the model with dense edges in f64.
pub fn error(ctx: &Context, kind: Kind, widths: [usize; 4]) -> Result<f64> {
    let found = gradients::<f32>(ctx, kind, widths, false)?;
    let wanted = gradients::<f64>(&Context::unchecked_cpu(), kind, widths, true)?;
    let errors = found.iter().zip(&wanted).map(|(found, wanted)| largest_error(found, wanted));
    Ok(errors.fold(0.0, f64::max))
}

/// Returns the logits, and the gradients of each parameter.
pub fn gradients<T: einsparse::Scalar>(
    ctx: &Context,
    kind: Kind,
    widths: [usize; 4],
    dense: bool,
) -> Result<Vec<Vec<f64>>> {
    let task = rmat::<T>(6, widths[0], widths[3])?;
    let mut model = Gcn::<T>::new(ctx, kind, &task, widths, dense)?;
    let stream = ctx.stream()?;
    model.forward(&stream)?;
    model.backward(&stream)?;
    stream.synchronize()?;
    let mut all = vec![wide(model.logits())?];
    for parameter in model.parameters() {
        all.push(wide(&parameter.gradient)?);
    }
    Ok(all)
}

pub fn run(run: &Run<'_>) -> Result<()> {
    let ctx = &run.context;
    for kind in [Kind::Gcn, Kind::Sage] {
        let error = error(ctx, kind, [16, 16, 16, 8])?;
        let [adam, sgd] = [accuracy(ctx, kind, true)?, accuracy(ctx, kind, false)?];
        println!(
            "{kind:?}: largest error {error:.1e}; of four communities found: Adam {adam:.3}, SGD {sgd:.3}"
        );
        // A GPU multiplies in TF32.
        assert!(error < if ctx.is_cuda() { 2e-2 } else { 1e-4 });
        assert!(adam > 0.7 && sgd > 0.7);
        let (scales, widths) = match run.toy {
            true => (vec![9], [32, 32, 32, 8]),
            false => (vec![18, 20], [128, 128, 128, 40]),
        };
        for scale in run.arguments.scale.map_or(scales, |scale| vec![scale]) {
            measured(run, (kind, error), scale, widths)?;
        }
    }
    Ok(())
}

/// Measures steps on a graph of 2^scale vertices.
fn measured(
    run: &Run<'_>,
    (kind, error): (Kind, f64),
    scale: u32,
    widths: [usize; 4],
) -> Result<()> {
    let ctx = &run.context;
    let task = rmat(scale, widths[0], widths[3])?;
    let memory = Memory::before(ctx);
    let model = Gcn::new(ctx, kind, &task, widths, false)?;
    let mut training = Training::new(ctx, model, true)?;
    let times = run.time(|stream| training.step(stream))?;
    let held = memory.since(ctx);
    let (vertices, edges) = (task.edges.rows(), task.edges.columns().len());
    drop(training);
    let mut note = "two trainings end in the same bits".to_owned();
    let twin = if scale <= 13 {
        let twin = Gcn::new(ctx, kind, &task, widths, true)?;
        let mut twin = Training::new(ctx, twin, true)?;
        Some(("dense edges".into(), run.time(|stream| twin.step(stream))?))
    } else {
        let bytes = (vertices as f64).powi(2) * 4.0;
        note += &format!(", dense edges would take {:.0} GB", bytes / 1e9);
        None
    };
    assert!(
        repeats(ctx, kind, &task, widths, if run.toy { 2 } else { 100 })?,
        "two trainings differ"
    );
    let case = format!("{kind:?} step, R-MAT {scale}, {vertices} vertices, {edges} edges");
    let (offsets, columns) = (task.edges.offsets(), task.edges.columns());
    let lists = vec![offsets.to_vec(), columns.to_vec()];
    run.lists.borrow_mut().push((case.clone(), lists));
    run.report(Measured {
        case,
        dtype: "f32",
        times,
        work: (edges as f64, "edges"),
        twin,
        held,
        error: Some(error),
        note,
    });
    Ok(())
}
