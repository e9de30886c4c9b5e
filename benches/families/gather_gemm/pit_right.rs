//! `C = A B` of a B of which nine tenths, say, of the pieces of 64 elements of a row are empty, detection inside the time, and the
//! transposition of A where A lies by rows, beside cuBLAS on the whole of it.

use crate::device::{Buffer, Gpu, Result};
use crate::families::gather_gemm::pit_matmul::{
    EXTENT, sample, stream, text, uniform, worst_error,
};
use crate::peers::cublas::CuBlas;
use crate::problems::Dtype;
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::dynamic::{RightMatmul, RightOptions};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Scalar, Tensor};

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
    let a = uniform::<T>()?;
    let a_there = context.upload_dense(&a).map_err(text)?;
    for empty in EMPTY {
        let (b, full) = sample::<T>((1, 64), empty)?;
        let case = Case {
            context: &context,
            a: &a,
            a_there: &a_there,
            b_there: context.upload_dense(&b).map_err(text)?,
            b,
            full,
            empty,
        };
        for by_columns in [false, true] {
            case.ours(gpu, effort, recorder, by_columns)?;
            case.dense(gpu, effort, recorder, (dtype, by_columns))?;
        }
    }
    Ok(())
}

/// One B, and an A that is read as `[m, k]` or as `[k, m]`.
struct Case<'c, T: Scalar> {
    context: &'c Context,
    a: &'c Dense<T>,
    a_there: &'c Tensor<T>,
    b: Dense<T>,
    b_there: Tensor<T>,
    full: usize,
    empty: u32,
}

impl<T: Scalar> Case<'_, T> {
    fn row(&self, times: Times, by_columns: bool) -> Row {
        let stored = if by_columns { "A[k,m]" } else { "A[m,k]" };
        let nnz = self.full * 64;
        Row {
            op: OP.into(),
            workload: format!("micro1x64-e{}-{stored}", f64::from(self.empty) / 100.0),
            m: EXTENT,
            k: EXTENT,
            n: EXTENT,
            nnz,
            dtype: T::DTYPE.name().into(),
            ms: times.cold,
            ms_warm: Some(times.warm),
            gflops: Some(2.0 * (nnz * EXTENT) as f64 / times.cold / 1e6),
            zeros: "dense".into(),
            ..Row::default()
        }
    }

    fn ours(
        &self,
        gpu: &Gpu,
        effort: Effort,
        recorder: &mut Recorder,
        by_columns: bool,
    ) -> Result<()> {
        let options = RightOptions {
            by_columns,
            ..RightOptions::default()
        };
        let product = RightMatmul::<T>::new(self.context, [EXTENT; 3], options);
        let mut product = product.map_err(text)?;
        let mut c = self.context.zeros::<T>(&[EXTENT; 2]).map_err(text)?;
        let stream = stream(gpu);
        let times = measure(gpu, effort, &mut || {
            let out = product.run(self.a_there, &self.b_there, &mut c, &stream);
            out.map_err(text)
        })?;
        let rows = (0..CHECKED).map(|i| i * (EXTENT / CHECKED) + i * 7);
        let at = |i: usize, k: usize| match by_columns {
            true => self.a.values()[k * EXTENT + i],
            false => self.a.values()[i * EXTENT + k],
        };
        let error = worst_error(at, &self.b, &c, rows)?;
        let wrong = if error <= 1.0 { "" } else { "WRONG: " };
        recorder.add(Row {
            engine: "einsparse".into(),
            variant: product.variants().join("+"),
            ms: if error <= 1.0 { times.cold } else { f64::NAN },
            note: format!("{wrong}detection inside; err {error:.2} of the bound"),
            ..self.row(times, by_columns)
        })
    }

    /// The whole product by cuBLAS, on the same operands.
    fn dense(
        &self,
        gpu: &Gpu,
        effort: Effort,
        recorder: &mut Recorder,
        (dtype, by_columns): (Dtype, bool),
    ) -> Result<()> {
        let Ok(cublas) = CuBlas::open(gpu, false) else {
            return Ok(());
        };
        let (Some(a), Some(b)) = (self.a_there.address(), self.b_there.address()) else {
            return Err("the operands are not on the GPU".into());
        };
        let c = Buffer::new(EXTENT * EXTENT * size_of::<T>())?;
        let all = [a, b, c.ptr];
        let times = measure(gpu, effort, &mut || match by_columns {
            true => cublas.gemm_turned(dtype, [EXTENT; 3], all),
            false => cublas.gemm(dtype, [EXTENT; 3], all),
        })?;
        recorder.add(Row {
            engine: "cublas".into(),
            variant: "dense product".into(),
            ..self.row(times, by_columns)
        })
    }
}
