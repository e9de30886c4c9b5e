//! Segmentation of point clouds by a U-Net over their voxels: kernel maps, a forward run, a training step.

use einsparse::formats::{Dense, bf16, f16};
use einsparse::nn::{Sgd, SgdOptions};
use einsparse::{Context, Result, Scalar, Stream, Tensor};

use super::common::{Measured, Memory, Run, Times, largest_error, wide};
use super::maps::{Maps, Rebuild};
use super::scans::{Scan, dense};
use super::unet::Unet;
use super::wiring::{LEVELS, Wiring};

pub const CLASSES: usize = 16;

/// Creates a network over a scan, with the scan's features.
pub fn network<T: Scalar, G: Scalar>(
    ctx: &Context,
    (scan, maps): (&Scan, &Maps),
    widths: [usize; LEVELS],
    trains: bool,
) -> Result<Unet<T, G>> {
    let mut net = Unet::new(ctx, maps, Wiring::new(widths, CLASSES), trains)?;
    net.values[0].write(&scan.features()?)?;
    Ok(net)
}

pub fn upload_labels(ctx: &Context, scan: &Scan) -> Result<Tensor<i32>> {
    ctx.upload_dense(&Dense::new([scan.labels.len()], scan.labels.clone())?)
}

/// Largest error of logits against a dense grid in f64. Asserts that two runs give the same bits.
pub fn error<T: Scalar>(ctx: &Context, widths: [usize; LEVELS]) -> Result<f64> {
    let scan = Scan::toy(16, CLASSES);
    let maps = Maps::new(ctx, &scan.voxels)?;
    let mut found = Vec::new();
    let mut net: Unet<T> = network(ctx, (&scan, &maps), widths, false)?;
    for _ in 0..2 {
        let stream = ctx.stream()?;
        net.forward(&stream)?;
        stream.synchronize()?;
        found.push(wide(net.logits())?);
    }
    assert_eq!(found[0], found[1], "two runs differ");
    let wanted = dense(&scan, &net.wiring, &wide(&net.parameters)?, 16)?;
    Ok(largest_error(&found[0], &wanted))
}

/// Largest error of a layer's gradients against the network in f64, in the Euclidean norm.
pub fn gradient_error<T: Scalar>(ctx: &Context, widths: [usize; LEVELS]) -> Result<f64> {
    let scan = Scan::toy(16, CLASSES);
    let own = {
        let maps = Maps::new(ctx, &scan.voxels)?;
        let mut net: Unet<T> = network(ctx, (&scan, &maps), widths, true)?;
        gradients(ctx, &scan, &mut net)?
    };
    let cpu = Context::unchecked_cpu();
    let maps = Maps::new(&cpu, &scan.voxels)?;
    let mut net: Unet<f64, f64> = network(&cpu, (&scan, &maps), widths, true)?;
    let rounded = net.wiring.start::<T>()?;
    let rounded = rounded.values().iter().map(|x| x.to_f64()).collect();
    net.parameters.write(&Dense::new([net.wiring.parameters], rounded)?)?;
    let wanted = gradients(&cpu, &scan, &mut net)?;
    let of_layer = net.wiring.wires.iter().map(|wire| {
        let part = wire.weights..wire.bias;
        let both = own[part.clone()].iter().zip(&wanted[part]);
        let [off, all] =
            both.fold([0.0, 0.0], |[off, all], (a, b)| [off + (a - b).powi(2), all + b * b]);
        (off / all.max(f64::MIN_POSITIVE)).sqrt()
    });
    Ok(of_layer.fold(0.0, f64::max))
}

fn gradients<T: Scalar, G: Scalar>(
    ctx: &Context,
    scan: &Scan,
    net: &mut Unet<T, G>,
) -> Result<Vec<f64>> {
    let (labels, stream) = (upload_labels(ctx, scan)?, ctx.stream()?);
    net.forward(&stream)?;
    net.backward(&labels, &stream)?;
    stream.synchronize()?;
    wide(&net.gradients)
}

/// A network in T, its parameters in f32, and the optimizer. In f16 the gradient of a mean over 100,000 voxels would be
/// too small for the type unless the loss were scaled; bf16 has the range of f32.
pub struct Training<T: Scalar> {
    pub net: Unet<T>,
    labels: Tensor<i32>,
    master: Tensor<f32>,
    sgd: Sgd,
}

impl<T: Scalar> Training<T> {
    pub fn new(
        ctx: &Context,
        scan: (&Scan, &Maps),
        widths: [usize; LEVELS],
    ) -> Result<Training<T>> {
        let net: Unet<T> = network(ctx, scan, widths, true)?;
        let options = SgdOptions { rate: 0.02, momentum: 0.9, ..SgdOptions::default() };
        Ok(Training {
            labels: upload_labels(ctx, scan.0)?,
            master: ctx.upload_dense(&net.wiring.start()?)?,
            sgd: Sgd::new(ctx, &[net.wiring.parameters], &options)?,
            net,
        })
    }

    /// Runs forward, loss, all gradients, and a step of all parameters.
    pub fn step(&mut self, stream: &Stream) -> Result<()> {
        self.net.forward(stream)?;
        self.net.backward(&self.labels, stream)?;
        let (gradients, copy) = (&self.net.gradients, &mut self.net.parameters);
        self.sgd.step_with_copy(&mut self.master, gradients, copy, stream)
    }

    /// Runs `steps` steps and returns their losses.
    pub fn losses(&mut self, ctx: &Context, steps: usize) -> Result<Vec<f32>> {
        let stream = ctx.stream()?;
        let mut all = Vec::new();
        for _ in 0..steps {
            self.step(&stream)?;
            stream.synchronize()?;
            all.push(self.net.loss.to_dense()?.values()[0]);
        }
        Ok(all)
    }
}

/// Losses of a training on a toy scan. Asserts that two trainings give the same bits.
pub fn learns<T: Scalar>(ctx: &Context, widths: [usize; LEVELS], steps: usize) -> Result<Vec<f32>> {
    let scan = Scan::toy(16, CLASSES);
    let maps = Maps::new(ctx, &scan.voxels)?;
    let train = || Training::<T>::new(ctx, (&scan, &maps), widths)?.losses(ctx, steps);
    let (first, second) = (train()?, train()?);
    let bits = |all: &[f32]| -> Vec<u32> { all.iter().map(|x| x.to_bits()).collect() };
    assert_eq!(bits(&first), bits(&second), "two trainings differ");
    Ok(first)
}

pub fn run(run: &Run<'_>) -> Result<()> {
    let ctx = &run.context;
    let small = [16, 24, 32, 40];
    let error = error::<f16>(ctx, small)?;
    // Rounding can move an activation across zero, where the gradient of the ReLU changes.
    let of_gradients = gradient_error::<f16>(ctx, small)?;
    let losses = learns::<bf16>(ctx, small, 8)?;
    let [first, last] = [losses[0], losses[7]];
    println!(
        "toy: largest error {error:.1e}, of gradients {of_gradients:.1e}; loss {first:.2}, then {last:.2}"
    );
    assert!(error < 1e-2 && of_gradients < 0.15 && last < first);
    let scans = match run.toy {
        true => vec![Scan::street([8, 64], 0.5, CLASSES)?],
        false => Scan::office(CLASSES)
            .into_iter()
            .chain([Scan::street([64, 2700], 0.05, CLASSES)?])
            .collect(),
    };
    let widths = if run.toy { small } else { [32, 64, 128, 256] };
    scans.iter().try_for_each(|scan| measure(run, scan, widths, error))
}

fn measure(run: &Run<'_>, scan: &Scan, widths: [usize; LEVELS], error: f64) -> Result<()> {
    let ctx = &run.context;
    let memory = Memory::before(ctx);
    let maps = Maps::new(ctx, &scan.voxels)?;
    let mut net: Unet<f16> = network(ctx, (scan, &maps), widths, false)?;
    let forward = run.time(|stream| net.forward(stream))?;
    let report = |what: &str, dtype, times, twin, note| {
        run.report(Measured {
            case: format!("{} of {} voxels, {what}", scan.name, scan.voxels.len()),
            dtype,
            times,
            work: (scan.voxels.len() as f64, "voxels"),
            twin,
            held: memory.since(ctx),
            error: Some(error),
            note,
        });
    };
    let mut alone = Times { warm: 0.0, cold: None };
    for at in 0..net.wiring.wires.len() {
        let times = run.time(|stream| net.forward_layer(at, stream))?;
        alone.warm += times.warm;
        alone.cold = times.cold.map(|cold| cold + alone.cold.unwrap_or(0.0));
    }
    let levels: Vec<usize> = maps.same.iter().map(|map| map.inputs()).collect();
    let note = format!(
        "maps made before; voxels of the levels {levels:?}; one dense tensor of the first would take {:.1} GB; {}",
        scan.dense_bytes(widths[0]) / 1e9,
        net.variants().join(" ")
    );
    let twin = ("its convolutions one by one".to_owned(), alone);
    report("forward", "f16", forward, Some(twin), note);
    if ctx.is_cuda() {
        let before = wide(net.logits())?;
        let mut rebuild = Rebuild::new(ctx, &maps, &scan.voxels)?;
        let times = run.time(|stream| {
            rebuild.run(&maps, stream)?;
            net.forward(stream)
        })?;
        assert_eq!(before, wide(net.logits())?, "rebuilt maps differ");
        let note = format!(
            "7 kernel maps and 3 transposed inside, {:.2} x the forward run",
            times.warm / forward.warm
        );
        report("forward with kernel maps", "f16", times, None, note);
    }
    drop(net);
    // Maps that are not rebuilt store the pairs for the gradients of weights.
    let maps = Maps::new(ctx, &scan.voxels)?;
    let mut training = Training::<bf16>::new(ctx, (scan, &maps), widths)?;
    let times = run.time(|stream| training.step(stream))?;
    let note = format!(
        "all gradients and SGD of {} parameters, {:.2} x the forward run; maps made before",
        training.net.wiring.parameters,
        times.warm / forward.warm
    );
    report("training step", "bf16", times, None, note);
    Ok(())
}
