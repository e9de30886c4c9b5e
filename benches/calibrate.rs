//! What the machine can do at most: an empty kernel, a copy, large dense products.

use crate::case::{Engine, Values};
use crate::device::{Buffer, Gpu, Result};
use crate::families::gemm::dense;
use crate::peers::cublas::CuBlas;
use crate::problems::Dtype;
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};

pub const OP: &str = "limits";

/// Measures what this machine can do at most: empty kernel, copy, large dense products.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    let row = |op: &str, workload: &str, engine: &str, times: &Times| Row {
        op: op.into(),
        workload: workload.into(),
        engine: engine.into(),
        ms: times.cold,
        ms_warm: Some(times.warm),
        ..Row::default()
    };
    let times = measure(gpu, effort, &mut || gpu.empty())?;
    recorder.add(row("launch", "empty-kernel", "driver", &times))?;
    let bytes = 1 << 30;
    let (from, to) = (Buffer::new(bytes)?, Buffer::new(bytes)?);
    let times = measure(gpu, effort, &mut || copy(gpu, &from, &to))?;
    let copied = row("copy", "copy-1GiB", "driver", &times);
    recorder.add(Row {
        gbps: Some(2.0 * bytes as f64 / times.cold / 1e6),
        ..copied
    })?;
    drop((from, to));
    let open = |tf32| {
        let opened = CuBlas::open(gpu, tf32);
        opened.inspect_err(|reason| println!("engine cublas left out: {reason}"))
    };
    let (strict, tf32) = (open(false), open(true));
    for dtype in Dtype::ALL {
        let chosen = if dtype == Dtype::Tf32 { &tf32 } else { &strict };
        let Ok(cublas) = chosen else { continue };
        let extent = if dtype == Dtype::F64 { 4096 } else { 8192 };
        let times = dense_product(gpu, effort, cublas, dtype, extent)?;
        recorder.add(Row {
            m: extent,
            k: extent,
            n: extent,
            nnz: extent * extent,
            dtype: dtype.to_string(),
            gflops: Some(2.0 * (extent as f64).powi(3) / times.cold / 1e6),
            zeros: "dense".into(),
            ..row("gemm", &format!("dense-{extent}"), cublas.name(), &times)
        })?;
    }
    for dtype in [Dtype::F16, Dtype::Bf16] {
        for extent in [4096, 8192] {
            for row in dense_products(gpu, effort, strict.as_ref().ok(), dtype, extent)? {
                recorder.add(row)?;
            }
        }
    }
    Ok(())
}

/// Our dense path beside cuBLAS on the same operands, those of 8192 again: the GPU's clock depends on what ran before.
fn dense_products(
    gpu: &Gpu,
    effort: Effort,
    cublas: Option<&CuBlas>,
    dtype: Dtype,
    extent: usize,
) -> Result<Vec<Row>> {
    let values = Values::new(dtype);
    let a = values.upload(extent * extent, 0)?;
    let b = values.upload(extent * extent, 77)?;
    let c = Buffer::new(a.bytes)?;
    let pointers = [a.ptr, b.ptr, c.ptr];
    let row = |engine: &str, variant: &str, times: Times| Row {
        op: "gemm".into(),
        workload: format!("dense-{extent}"),
        engine: engine.into(),
        variant: variant.into(),
        m: extent,
        k: extent,
        n: extent,
        nnz: extent * extent,
        dtype: dtype.to_string(),
        ms: times.cold,
        ms_warm: Some(times.warm),
        gflops: Some(2.0 * (extent as f64).powi(3) / (times.cold * 1e-3) / 1e9),
        zeros: "dense".into(),
        ..Row::default()
    };
    let mut rows = Vec::new();
    match dense::square(gpu, dtype, extent, pointers) {
        Ok((name, mut run)) => {
            let times = measure(gpu, effort, &mut run)?;
            rows.push(row("einsparse", &name, times));
        }
        Err(reason) => println!("einsparse has no dense {dtype} product: {reason}"),
    }
    if let Some(cublas) = cublas {
        let times = measure(gpu, effort, &mut || {
            cublas.gemm(dtype, [extent; 3], pointers)
        })?;
        rows.push(row(cublas.name(), "dense", times));
    }
    Ok(rows)
}

fn dense_product(
    gpu: &Gpu,
    effort: Effort,
    cublas: &CuBlas,
    dtype: Dtype,
    extent: usize,
) -> Result<Times> {
    let values = Values::new(dtype);
    let a = values.upload(extent * extent, 0)?;
    let b = values.upload(extent * extent, 77)?;
    let c = Buffer::new(a.bytes)?;
    measure(gpu, effort, &mut || {
        cublas.gemm(dtype, [extent; 3], [a.ptr, b.ptr, c.ptr])
    })
}

/// Queues a copy of all of `from`.
pub fn copy(gpu: &Gpu, from: &Buffer, to: &Buffer) -> Result<()> {
    use cudarc::driver::sys;
    // SAFETY: both buffers hold `from.bytes` bytes.
    let status = unsafe { sys::cuMemcpyDtoDAsync_v2(to.ptr, from.ptr, from.bytes, gpu.stream) };
    crate::device::check(status, "cuMemcpyDtoDAsync")
}
