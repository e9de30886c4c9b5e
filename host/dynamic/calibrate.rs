//! Measures [`TileTimes`] on a GPU.

use einsparse_formats::{Dense, f16};

use super::{Detector, DynamicMatmul, MatmulOptions};
use crate::context::Context;
use crate::device::Stream;
use crate::driver::Event;
use crate::error::Result;
use crate::machine::{HeightTimes, TileTimes, megabytes, stages, waves};
use crate::tensor::Tensor;

/// Rows and columns of A, and columns of B: of the wide product (`EXTENT`) and of the narrow one (`NARROW`).
const EXTENT: usize = 4096;
const NARROW: usize = 1024;
/// One of `OFTEN` or of `RARELY` micro-tiles is nonempty.
const OFTEN: usize = 2;
const RARELY: usize = 8;
/// Runs per series, and number of series. The fastest series counts, because the clock may be low at first.
const RUNS: usize = 10;
const SERIES: usize = 4;

impl TileTimes {
    /// Measures the times of the tiles on the context's GPU. This takes about a second and 200 MB of device memory.
    /// Pass the result to [`Context::set_tile_times`] to use it for later plans, and [save](Self::save) it for later
    /// programs.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) on a CPU context; [`Error::NoKernel`](crate::Error::NoKernel) on a GPU
    /// without the kernels; [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn measure(context: &Context) -> Result<TileTimes> {
        let multiprocessors = context.expect_device()?.machine().multiprocessors;
        let stream = context.stream()?;
        let b = Dense::from_fn(vec![EXTENT, EXTENT], |i| value(i[0] * 31 + i[1]))?;
        let b = context.upload_dense(&b)?;
        let narrow = context
            .upload_dense(&Dense::from_fn(vec![EXTENT, NARROW], |i| value(i[0] * 17 + i[1]))?)?;
        let mut times = TileTimes::built_in();
        let mut detect = f64::INFINITY;
        for (&height, of_height) in &mut times.heights {
            let run = |rare: usize, b: &Tensor<f16>| product_us(context, height, rare, b, &stream);
            let (often, rarely) = (run(OFTEN, &b)?, run(RARELY, &b)?);
            let few = run(RARELY, &narrow)?;
            let waves = |n: usize| waves(height, [EXTENT, n], multiprocessors);
            let stages = |rare: usize| stages(EXTENT, 1.0 / rare as f64);
            let more = waves(EXTENT) * (stages(OFTEN) - stages(RARELY));
            let stage = (often[0] - rarely[0]) / more;
            let of_tile = (rarely[0] - few[0]) / (waves(EXTENT) - waves(NARROW)).max(1.0);
            let tile = (of_tile - stages(RARELY) * stage).max(0.0);
            let mb = megabytes([EXTENT; 2]);
            detect = f64::min(detect, (few[1] - launch_us(context, &stream)?).max(0.0) / mb);
            let rest = few[0] - waves(NARROW) * (tile + stages(RARELY) * stage) - detect * mb;
            *of_height = HeightTimes { start: rest.max(0.0), tile, stage: stage.max(0.0) };
        }
        times.detect = detect;
        times.dense = (dense_factor(context, &b, &b, &stream)?
            * dense_factor(context, &b, &narrow, &stream)?)
        .sqrt();
        Ok(times)
    }
}

/// Nonzero values; adjacent ones differ.
fn value(i: usize) -> f16 {
    f16::from_f32(0.25 + (i % 13) as f32 / 16.0)
}

/// Microseconds per run of the fastest series.
fn fastest(stream: &Stream, run: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    let (start, end) = (Event::new()?, Event::new()?);
    let mut best = f64::INFINITY;
    for _ in 0..=SERIES {
        start.record(stream.raw())?;
        for _ in 0..RUNS {
            run()?;
        }
        end.record(stream.raw())?;
        end.synchronize()?;
        best = best.min(f64::from(end.elapsed_ms(&start)?) * 1e3 / RUNS as f64);
    }
    Ok(best)
}

/// Times of detection and product, and of detection alone.
fn product_us(
    context: &Context,
    height: usize,
    rare: usize,
    b: &Tensor<f16>,
    stream: &Stream,
) -> Result<[f64; 2]> {
    let (m, k, n) = (EXTENT, EXTENT, b.shape()[1]);
    // Micro-tiles are distributed evenly: every panel has the same number of nonempty ones.
    let full = |i: &[usize]| (i[1] * 7 + i[0] / height).is_multiple_of(rare);
    let a = Dense::from_fn(vec![m, k], |i| match full(i) {
        true => value(i[0] + i[1]),
        false => f16::ZERO,
    })?;
    let a = context.upload_dense(&a)?;
    let options = MatmulOptions { height, ..MatmulOptions::default() };
    let mut product = DynamicMatmul::<f16>::new(context, [m, k, n], &options)?;
    let mut c = context.zeros::<f16>(&[m, n])?;
    let both = fastest(stream, &mut || product.forward(&a, b, &mut c, stream))?;
    let first = fastest(stream, &mut || product.detect(&a, stream))?;
    Ok([both, first])
}

/// Time of a detection in a very small matrix.
fn launch_us(context: &Context, stream: &Stream) -> Result<f64> {
    let a = context.zeros::<f16>(&[128, 128])?;
    let detector = Detector::<f16>::new(context, [128, 128], (128, 1), &Default::default())?;
    let mut index = detector.index()?;
    fastest(stream, &mut || detector.run(&a, &mut index, stream))
}

/// Measured time of a dense product divided by the predicted time.
fn dense_factor(
    context: &Context,
    a: &Tensor<f16>,
    b: &Tensor<f16>,
    stream: &Stream,
) -> Result<f64> {
    let operands = [("A", a.into()), ("B", b.into())];
    let plan = context.plan("C[m,n] = A[m,k] * B[k,n]").operands(&operands).build()?;
    let mut c = context.zeros::<f16>(plan.out_shape())?;
    let us = fastest(stream, &mut || plan.run(&operands, &mut c, stream))?;
    let predicted = plan.choice().candidates.first().map_or(us, |c| c.cost.us);
    Ok(us / predicted.max(1e-3))
}
