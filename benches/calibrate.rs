//! Limits of the machine: an empty kernel, a copy, large dense products.

use crate::bench::Place;
use crate::case::{Engine, Values};
use crate::device::{Buffer, Gpu, Result, check, or_said};
use crate::families::gemm::dense;
use crate::peers::cublas::CuBlas;
use crate::problems::Dtype;
use crate::record::Row;
use crate::timing::Times;
use cudarc::driver::sys;

pub const OP: &str = "limits";

/// Measures the limits of this machine: an empty kernel, a copy, and large dense products.
pub fn run(place: &Place<'_>) -> Result<()> {
    let driver = |op: &str, workload: &str, times: &Times| {
        let row = Row::new(op, workload, [0; 3], 0, "");
        row.by("driver", "").timed(times)
    };
    let times = place.measure(|| place.gpu.empty())?;
    place.add(driver("launch", "empty-kernel", &times))?;
    let bytes = 1 << 30;
    let times = copied(place, bytes)?;
    place.add(driver("copy", "copy-1GiB", &times).bytes(2.0 * bytes as f64))?;
    let open = |tf32| or_said(CuBlas::open(place.gpu, tf32), "engine cublas");
    let (strict, tf32) = (open(false), open(true));
    for dtype in Dtype::ALL {
        let chosen = if dtype == Dtype::Tf32 { &tf32 } else { &strict };
        let Some(cublas) = chosen else { continue };
        let extent = if dtype == Dtype::F64 { 4096 } else { 8192 };
        let square = Square::new(dtype, extent)?;
        let times = square.cublas(place, cublas)?;
        place.add(square.row(cublas.name(), "", &times))?;
    }
    for dtype in [Dtype::F16, Dtype::Bf16] {
        for extent in [4096, 8192] {
            Square::new(dtype, extent)?.both(place, strict.as_ref())?;
        }
    }
    Ok(())
}

/// Two square matrices and a buffer for their product.
struct Square {
    dtype: Dtype,
    extent: usize,
    buffers: [Buffer; 3],
}

impl Square {
    fn new(dtype: Dtype, extent: usize) -> Result<Self> {
        let values = Values::new(dtype);
        let a = values.upload(extent * extent, 0)?;
        let b = values.upload(extent * extent, 77)?;
        let c = Buffer::new(a.bytes)?;
        Ok(Self { dtype, extent, buffers: [a, b, c] })
    }

    fn row(&self, engine: &str, variant: &str, times: &Times) -> Row {
        let (extent, workload) = (self.extent, format!("dense-{}", self.extent));
        Row::new("gemm", workload, [extent; 3], extent * extent, self.dtype)
            .by(engine, variant)
            .timed(times)
            .flops(2.0 * (extent as f64).powi(3))
            .dense()
    }

    fn pointers(&self) -> [u64; 3] {
        self.buffers.each_ref().map(|buffer| buffer.ptr)
    }

    fn cublas(&self, place: &Place<'_>, cublas: &CuBlas) -> Result<Times> {
        let pointers = self.pointers();
        place.measure(|| cublas.gemm(self.dtype, [self.extent; 3], pointers))
    }

    /// Times einsparse's dense kernel and cuBLAS on the same operands. The case of extent 8192 runs twice, because the
    /// GPU's clock depends on earlier work.
    fn both(&self, place: &Place<'_>, cublas: Option<&CuBlas>) -> Result<()> {
        let (dtype, mut rows) = (self.dtype, Vec::new());
        match dense::square(place.gpu, dtype, self.extent, self.pointers()) {
            Ok((name, run)) => rows.push(self.row("einsparse", &name, &place.measure(run)?)),
            Err(reason) => println!("einsparse has no dense {dtype} product: {reason}"),
        }
        if let Some(cublas) = cublas {
            let times = self.cublas(place, cublas)?;
            rows.push(self.row(cublas.name(), "dense", &times));
        }
        rows.into_iter().try_for_each(|row| place.add(row))
    }
}

/// Times a copy of `bytes` bytes.
pub fn copied(place: &Place<'_>, bytes: usize) -> Result<Times> {
    let (from, to) = (Buffer::new(bytes)?, Buffer::new(bytes)?);
    place.measure(|| copy(place.gpu, &from, &to))
}

/// Queues a copy of the whole buffer `from`.
pub fn copy(gpu: &Gpu, from: &Buffer, to: &Buffer) -> Result<()> {
    // SAFETY: both buffers hold `from.bytes` bytes.
    let status = unsafe { sys::cuMemcpyDtoDAsync_v2(to.ptr, from.ptr, from.bytes, gpu.stream) };
    check(status, "cuMemcpyDtoDAsync")
}
