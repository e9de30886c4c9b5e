//! `C = A B` of a B of which nine tenths, say, of the pieces of 64 elements of a row are empty, detection inside the time, and the
//! transposition of A where A lies by rows, beside cuBLAS on the whole of it.

use crate::device::{Buffer, Gpu, Result};
use crate::dynamic::{EXTENT, sample, stream, text, worst_error};
use crate::peers::cublas::CuBlas;
use crate::problems::{Dtype, SEED};
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::dynamic::{RightMatmul, RightOptions};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Scalar};
use rand::{Rng, SeedableRng, rngs::StdRng};

pub const OP: &str = "pit_right";

/// Shares of micro-tiles that are empty, in percent.
const EMPTY: [u32; 3] = [50, 90, 95];
/// So many rows of C are checked.
const CHECKED: usize = 8;

/// Every share and both storages of A, f16 and bf16.
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
    let mut rng = StdRng::seed_from_u64(SEED + 1);
    let a = (0..EXTENT * EXTENT).map(|_| T::from_f64(rng.random_range(-1.73..1.73)));
    let a = Dense::new([EXTENT, EXTENT], a.collect()).map_err(text)?;
    let a_there = context.upload_dense(&a).map_err(text)?;
    let stream = stream(gpu);
    for empty in EMPTY {
        let (b, full) = sample::<T>((1, 64), empty)?;
        let b_there = context.upload_dense(&b).map_err(text)?;
        for by_columns in [false, true] {
            let row = |times: Times| Row {
                op: OP.into(),
                workload: format!(
                    "micro1x64-e{}-{}",
                    f64::from(empty) / 100.0,
                    if by_columns { "A[k,m]" } else { "A[m,k]" }
                ),
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
            let options = RightOptions {
                by_columns,
                ..RightOptions::default()
            };
            let product = RightMatmul::<T>::new(&context, [EXTENT; 3], options);
            let mut product = product.map_err(text)?;
            let mut c = context.zeros::<T>(&[EXTENT; 2]).map_err(text)?;
            let times = measure(gpu, effort, &mut || {
                let out = product.run(&a_there, &b_there, &mut c, &stream);
                out.map_err(text)
            })?;
            let rows = (0..CHECKED).map(|i| i * (EXTENT / CHECKED) + i * 7);
            // The same matrix, read as A or as its transpose.
            let at = |i: usize, k: usize| match by_columns {
                true => a.values()[k * EXTENT + i],
                false => a.values()[i * EXTENT + k],
            };
            let error = worst_error(at, &b, &c, rows)?;
            let wrong = if error <= 1.0 { "" } else { "WRONG: " };
            recorder.add(Row {
                engine: "einsparse".into(),
                variant: product.variants().join("+"),
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
                let all = [x, y, out.ptr];
                match by_columns {
                    true => cublas.gemm_turned(dtype, [EXTENT; 3], all),
                    false => cublas.gemm(dtype, [EXTENT; 3], all),
                }
            })?;
            recorder.add(Row {
                engine: "cublas".into(),
                variant: "dense product".into(),
                ..row(times)
            })?;
        }
    }
    Ok(())
}
