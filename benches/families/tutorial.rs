//! The levels of docs/levels.md beside cuBLAS, on the same operands.

#[path = "../../tests/families/tutorial/levels/launch.rs"]
mod launch;

use crate::case::{Values, decode};
use crate::device::{Buffer, Gpu, Result, is_built};
use crate::peers::cublas::CuBlas;
use crate::problems::Dtype;
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::Context;
use einsparse::driver::RawStream;
use launch::{Level, levels};

/// m and n.
const EXTENT: usize = 4096;
/// k: the case that counts, and twice of it. The difference is what the stages take, the rest is begin and end.
const DEPTHS: [usize; 2] = [4096, 8192];
/// Relative error against cuBLAS above which a level is wrong: twice the roundoff of f16.
const TOLERANCE: f64 = 1e-3;

/// Every level and cuBLAS, in one run.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    if !is_built("levels") {
        return Ok(());
    }
    let cublas = CuBlas::open(gpu, false)?;
    let mut wrong = Vec::new();
    for k in DEPTHS {
        wrong.extend(product(gpu, effort, &cublas, k, recorder)?);
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("wrong: {}", wrong.join(", ")))
    }
}

/// One case. Returns the levels that are wrong.
fn product(
    gpu: &Gpu,
    effort: Effort,
    cublas: &CuBlas,
    k: usize,
    recorder: &mut Recorder,
) -> Result<Vec<&'static str>> {
    let context = Context::cuda(0).map_err(|e| e.to_string())?;
    let device = context.device().ok_or("no device")?;
    let values = Values::new(Dtype::F16);
    let a = values.upload(EXTENT * k, 0)?;
    let b = values.upload(k * EXTENT, 77)?;
    let c = || Buffer::new(EXTENT * EXTENT * Dtype::F16.size());
    let (c, expected) = (c()?, c()?);
    let extents = [EXTENT, k, EXTENT];
    let mut gemm = || cublas.gemm(Dtype::F16, extents, [a.ptr, b.ptr, expected.ptr]);
    gemm()?;
    gpu.wait()?;
    let expected_elements = elements(&expected)?;
    let mut wrong = Vec::new();
    for level in levels() {
        let launch = Level::new(device, level, extents, [a.ptr, b.ptr, c.ptr]);
        let launch = launch.map_err(|e| e.to_string())?;
        let mut product = || {
            // SAFETY: the stream is that of the primary context, which both sides share; the buffers hold matrices of
            // these extents and outlive the measurement.
            unsafe { launch.run(RawStream::from_raw(gpu.stream.cast())) }.map_err(|e| e.to_string())
        };
        c.fill(0xff, gpu.stream)?;
        product()?;
        gpu.wait()?;
        let error = relative_error(&elements(&c)?, &expected_elements);
        let right = error <= TOLERANCE;
        if !right {
            wrong.push(level.name);
        }
        let head = if right { "" } else { "WRONG: " };
        let times = measure(gpu, effort, &mut product)?;
        recorder.add(Row {
            note: format!("{head}err {error:.1e} against cuBLAS"),
            ..row(k, "einsparse", level.name, &times)
        })?;
    }
    let times = measure(gpu, effort, &mut gemm)?;
    recorder.add(row(k, "cublas", "dense", &times))?;
    Ok(wrong)
}

fn row(k: usize, engine: &str, variant: &str, times: &Times) -> Row {
    Row {
        op: "levels".into(),
        workload: format!("dense-{EXTENT}x{k}x{EXTENT}"),
        m: EXTENT,
        k,
        n: EXTENT,
        nnz: EXTENT * k,
        dtype: Dtype::F16.to_string(),
        engine: engine.into(),
        variant: variant.into(),
        ms: times.cold,
        ms_warm: Some(times.warm),
        gflops: Some(2.0 * (EXTENT * k * EXTENT) as f64 / times.cold / 1e6),
        zeros: "dense".into(),
        ..Row::default()
    }
}

fn elements(matrix: &Buffer) -> Result<Vec<f64>> {
    let mut bytes = vec![0u8; matrix.bytes];
    matrix.read(0, &mut bytes)?;
    let one = |bytes| decode(Dtype::F16, bytes);
    Ok(bytes.chunks(2).map(one).collect())
}

/// In the Frobenius norm; NaN where a level left elements unwritten.
fn relative_error(found: &[f64], expected: &[f64]) -> f64 {
    let pairs = found.iter().zip(expected);
    let error: f64 = pairs.map(|(x, y)| (x - y) * (x - y)).sum();
    let norm: f64 = expected.iter().map(|y| y * y).sum();
    (error / norm).sqrt()
}
