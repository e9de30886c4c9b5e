//! `C = A^T B` of an A of which nine tenths, say, of the pieces of 64 elements of a row are empty, detection inside the time, beside cuBLAS
//! on the whole of it: the gradient of B in a product with a dynamic A, and layers with masked weights.

use crate::device::{Buffer, Gpu, Result};
use crate::families::gather_gemm::pit_matmul::{
    EXTENT, sample, stream, text, uniform, worst_error,
};
use crate::peers::cublas::CuBlas;
use crate::problems::Dtype;
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::dynamic::TurnedMatmul;
use einsparse::formats::{bf16, f16};
use einsparse::{Context, Determinism, Scalar};

/// Shares of micro-tiles that are empty, in percent.
const EMPTY: [u32; 4] = [0, 50, 90, 95];
/// So many rows of C are checked.
const CHECKED: usize = 16;

/// Every share, f16 and bf16.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    of_type::<f16>(gpu, effort, recorder, Dtype::F16)?;
    of_type::<bf16>(gpu, effort, recorder, Dtype::Bf16)
}

fn of_type<T: Scalar>(
    gpu: &Gpu,
    effort: Effort,
    recorder: &mut Recorder,
    dtype: Dtype,
) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    let b = uniform::<T>()?;
    let b_there = context.upload_dense(&b).map_err(text)?;
    let stream = stream(gpu);
    for empty in EMPTY {
        let (a, full) = sample::<T>((1, 64), empty)?;
        let a_there = context.upload_dense(&a).map_err(text)?;
        let row = |times: Times| Row {
            op: "pit_turned".into(),
            workload: format!("micro1x64-e{}", f64::from(empty) / 100.0),
            m: EXTENT,
            k: EXTENT,
            n: EXTENT,
            nnz: full * 64,
            dtype: T::DTYPE.name().into(),
            ms: times.cold,
            ms_warm: Some(times.warm),
            gflops: Some(2.0 * (full * 64 * EXTENT) as f64 / times.cold / 1e6),
            zeros: "dense".into(),
            ..Row::default()
        };
        let product = TurnedMatmul::<T>::new(&context, [EXTENT; 3], 0.0, Determinism::Strict);
        let mut product = product.map_err(text)?;
        let mut c = context.zeros::<T>(&[EXTENT; 2]).map_err(text)?;
        let times = measure(gpu, effort, &mut || {
            let out = product.run(&a_there, &b_there, &mut c, &stream);
            out.map_err(text)
        })?;
        let rows = (0..CHECKED).map(|i| i * (EXTENT / CHECKED) + i * 7);
        let error = worst_error(|i, k| a.values()[k * EXTENT + i], &b, &c, rows)?;
        let wrong = if error <= 1.0 { "" } else { "WRONG: " };
        recorder.add(Row {
            engine: "einsparse".into(),
            variant: product.variants()[1].into(),
            ms: if error <= 1.0 { times.cold } else { f64::NAN },
            note: format!("{wrong}detection inside; err {error:.2} of the bound"),
            ..row(times)
        })?;
        let Ok(cublas) = CuBlas::open(gpu, false) else {
            continue;
        };
        let (Some(x), Some(y)) = (a_there.address(), b_there.address()) else {
            return Err("the operands are not on the GPU".into());
        };
        let out = Buffer::new(EXTENT * EXTENT * size_of::<T>())?;
        let times = measure(gpu, effort, &mut || {
            cublas.gemm_turned(dtype, [EXTENT; 3], [x, y, out.ptr])
        })?;
        recorder.add(Row {
            engine: "cublas".into(),
            variant: "dense product".into(),
            ..row(times)
        })?;
    }
    Ok(())
}
