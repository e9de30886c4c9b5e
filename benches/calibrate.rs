//! Limits of the machine: an empty kernel, a copy, large dense products.

use crate::case::Values;
use crate::device::check;
use crate::families::gemm::dense;
use crate::prelude::*;
use cudarc::driver::sys;

pub const OP: &str = "limits";

/// Measures the limits of this machine: an empty kernel, a copy, and large dense products.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    let driver = |op: &str, name: &str| Row::new(op, name, [0; 3], 0, "").by("driver", "");
    bench.time(driver("launch", "empty-kernel"), || bench.gpu.empty())?;
    let bytes = 1 << 30;
    let row = driver("copy", "copy-1GiB").bytes(2.0 * bytes as f64);
    bench.add(row.timed(&copied(bench, bytes)?))?;
    for dtype in Dtype::ALL {
        let extent = if dtype == Dtype::F64 { 4096 } else { 8192 };
        let (row, [a, b, _]) = square(dtype, extent)?;
        bench.whole(row, (dtype, [extent; 3], Order::Rows), [a.ptr, b.ptr])?;
    }
    // The case of extent 8192 runs twice, because the GPU's clock depends on earlier work.
    for dtype in [Dtype::F16, Dtype::Bf16] {
        for extent in [4096, 8192] {
            let (row, buffers) = square(dtype, extent)?;
            let [a, b, c] = buffers.each_ref().map(|buffer| buffer.ptr);
            match dense::square(bench.gpu, dtype, extent, [a, b, c]) {
                Ok((name, run)) => drop(bench.time(row.clone().ours(name), run)?),
                Err(reason) => println!("einsparse has no dense {dtype} product: {reason}"),
            }
            bench.whole(row.named("dense"), (dtype, [extent; 3], Order::Rows), [a, b])?;
        }
    }
    Ok(())
}

/// Row of a product of square matrices, both matrices, and a buffer for their product.
fn square(dtype: Dtype, extent: usize) -> Result<(Row, [Buffer; 3])> {
    let values = Values::new(dtype);
    let a = values.upload(extent * extent, 0)?;
    let b = values.upload(extent * extent, 77)?;
    let c = Buffer::new(a.bytes)?;
    let row = Row::new("gemm", format!("dense-{extent}"), [extent; 3], extent * extent, dtype);
    Ok((row.flops(2.0 * (extent as f64).powi(3)).dense(), [a, b, c]))
}

/// Times a copy of `bytes` bytes.
pub fn copied(bench: &Bench<'_>, bytes: usize) -> Result<Times> {
    let (from, to) = (Buffer::new(bytes)?, Buffer::new(bytes)?);
    bench.measure(|| copy(bench.gpu, &from, &to))
}

/// Queues a copy of the whole buffer `from`.
pub fn copy(gpu: &crate::device::Gpu, from: &Buffer, to: &Buffer) -> Result<()> {
    // SAFETY: both buffers hold `from.bytes` bytes.
    let status = unsafe { sys::cuMemcpyDtoDAsync_v2(to.ptr, from.ptr, from.bytes, gpu.stream) };
    check(status, "cuMemcpyDtoDAsync")
}
