//! Products of 8-bit operands, `C[m,n] = A[m,k] * B[n,k]`. Baselines are f16 on the same blocks, and the dense products
//! of cuBLAS.
//!
//! fp8 and int8 require B as `[n, k]`; f16 is measured with both orders of B.

use crate::peers::cublaslt::{self, Kind};
use crate::prelude::*;
use crate::problems;
use einsparse::formats::{Bsr, BsrPattern, E4m3, E5m2, generate};
use einsparse::registry::Dtype;
use std::sync::Arc;

/// Rows and columns of A, columns of C.
const EXTENT: usize = 4096;
const COLUMNS: &str = "C[m,n] = A[m,k] * B[n,k]";
/// Block edges and densities.
const CASES: [(usize, &[f64]); 3] = [
    (128, &[1.0, 0.5, 0.2, 0.1, 0.05]),
    (64, &[0.5, 0.2, 0.1, 0.05]),
    (32, &[0.5, 0.2, 0.1, 0.05]),
];
/// Stride of the checked rows and columns of C.
const CHECKED: usize = 331;

/// Eight bits of a hash: whole for integers, in -1..1 for floats.
fn value<T: Scalar>(i: usize) -> T {
    let hash = ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as f64 - 127.5;
    T::from_f64(match T::DTYPE {
        Dtype::Int8 => hash,
        _ => hash / 128.0,
    })
}

/// One pattern, with data that its cases share.
struct Case<'a> {
    bench: &'a Bench<'a>,
    pattern: Arc<BsrPattern>,
    workload: String,
}

pub fn run(bench: &Bench<'_>) -> Result<()> {
    dense(bench)?;
    for (edge, densities) in CASES {
        for &density in densities {
            let pattern = generate::blocks(EXTENT, EXTENT, (edge, edge), density, SEED)?;
            let case = Case {
                bench: &bench.anew()?,
                pattern: Arc::new(pattern),
                workload: format!("block{edge}-d{density}"),
            };
            case.half(SPMM, "[k,n]")?;
            // f16 supports B as `[n, k]` only for blocks of at least 64.
            if edge >= 64 {
                case.half(COLUMNS, "[n,k]")?;
            }
            case.narrow::<E4m3, f16>("fp8")?;
            case.narrow::<E5m2, f16>("fp8")?;
            case.narrow::<i8, i32>("int8")?;
        }
    }
    Ok(())
}

/// Times dense products of the same extents. Types that the library does not support are skipped.
fn dense(bench: &Bench<'_>) -> Result<()> {
    fn values<T: Scalar>() -> Vec<T> {
        (0..EXTENT * EXTENT).map(value).collect()
    }
    let row = |engine: &str, variant: &str, dtype: &str, note: &str, times: Times| {
        let workload = format!("dense-{EXTENT}");
        let row = shaped("gemm", workload, dtype, EXTENT * EXTENT, &times);
        bench.add(row.by(engine, variant).note(note))
    };
    let c = Buffer::new(EXTENT * EXTENT * 4)?;
    let cublas = CuBlas::open(bench.gpu, false)?;
    let a = Buffer::from_slice(&values::<f16>())?;
    let (addresses, half) = ([a.ptr, a.ptr, c.ptr], problems::Dtype::F16);
    let times = bench.measure(|| cublas.gemm(half, [EXTENT; 3], addresses))?;
    row("cublas", "dense", "f16", "into f16", times)?;
    let (fp8, int8) = (values::<E4m3>(), values::<i8>());
    let (fp8, int8): (&[u8], &[u8]) = (bytemuck::cast_slice(&fp8), bytemuck::cast_slice(&int8));
    let fast = "e4m3 into f16, fast accumulation";
    for (kind, variant, dtype, note, values) in [
        (Kind::Fp8, "dense", "fp8", "e4m3 into f16", fp8),
        (Kind::Fp8Fast, "dense-fast", "fp8", fast, fp8),
        (Kind::Int8, "dense", "int8", "into int32", int8),
    ] {
        let opened = cublaslt::Dense::new(bench.gpu, kind, [EXTENT; 3]);
        let Some(product) = or_said(opened, &format!("{kind:?} of cublaslt")) else {
            continue;
        };
        let a = Buffer::from_slice(values)?;
        let times = bench.measure(|| product.run([a.ptr, a.ptr, c.ptr]))?;
        row("cublaslt", variant, dtype, note, times)?;
    }
    Ok(())
}

/// Row of a product of these extents.
fn shaped(op: &str, workload: String, dtype: &str, nnz: usize, times: &Times) -> Row {
    Row::new(op, workload, [EXTENT; 3], nnz, dtype)
        .timed(times)
        .flops(2.0 * nnz as f64 * EXTENT as f64)
        .dense()
}

impl Case<'_> {
    fn slots(&self) -> usize {
        let (bm, bk) = self.pattern.block();
        self.pattern.columns().len() * bm * bk
    }

    fn operands<T: Scalar>(&self) -> Result<(SparseTensor<T>, Tensor<T>)> {
        let values = (0..self.slots()).map(value).collect();
        let a = Bsr::new(Arc::clone(&self.pattern), values)?;
        let b = Dense::from_fn(vec![EXTENT; 2], |i| value(i[0] * EXTENT + i[1] + 77))?;
        let b = self.bench.upload(&b)?;
        Ok((self.bench.context.upload(a)?, b))
    }

    /// Measures f16 into f16, with the plan's kernel.
    fn half(&self, expression: &str, axes: &str) -> Result<()> {
        let (name, times, error) = self.measured::<f16, f16>(expression)?;
        let note = format!("into f16, B as {axes}; {error}");
        self.add(name, "f16", note, &times)
    }

    /// Measures 8-bit operands into a wider output.
    fn narrow<In: Scalar, Out: Scalar>(&self, dtype: &str) -> Result<()> {
        let (name, times, error) = self.measured::<In, Out>(COLUMNS)?;
        let note = format!("{} into {}, B as [n,k]; {error}", In::NAME, Out::NAME);
        self.add(name, dtype, note, &times)
    }

    /// Returns the plan's kernel, its times, and a text with its error.
    fn measured<In: Scalar, Out: Scalar>(
        &self,
        expression: &str,
    ) -> Result<(&'static str, Times, String)> {
        let bench = self.bench;
        let (a, b) = self.operands::<In>()?;
        let operands: [(&str, Operand<'_, In>); 2] = [("A", (&a).into()), ("B", (&b).into())];
        let (plan, _) = bench.plan::<In, Out>(expression, &operands, &Options::default())?;
        let mut c = bench.zeros(&[EXTENT; 2])?;
        let times = bench.measure(|| plan.run(&operands, &mut c, &bench.stream))?;
        let error = self.error::<In, Out>(&c, expression == COLUMNS)?;
        Ok((plan.variant(), times, error))
    }

    fn add(&self, variant: &str, dtype: &str, note: String, times: &Times) -> Result<()> {
        let workload = self.workload.clone();
        let row = shaped("block_spmm", workload, dtype, self.slots(), times);
        self.bench.add(row.ours(variant).note(note))
    }

    /// Max error of some elements of C, relative to the sum of the terms' magnitudes.
    fn error<In: Scalar, Out: Scalar>(&self, c: &Tensor<Out>, columns: bool) -> Result<String> {
        let (bm, bk) = self.pattern.block();
        let c = c.to_dense()?;
        let mut worst = 0f64;
        for row in (0..EXTENT).step_by(CHECKED) {
            let offsets = &self.pattern.offsets()[row / bm..];
            for column in (0..EXTENT).step_by(CHECKED) {
                let mut sum = Sum::default();
                for p in offsets[0] as usize..offsets[1] as usize {
                    let first = self.pattern.columns()[p] as usize * bk;
                    for i in 0..bk {
                        let k = first + i;
                        let at = match columns {
                            true => column * EXTENT + k,
                            false => k * EXTENT + column,
                        };
                        let a = value::<In>((p * bm + row % bm) * bk + i).to_f64();
                        sum.add(a * value::<In>(at + 77).to_f64());
                    }
                }
                let found = c.get(&[row, column]).map_or(f64::NAN, |x| x.to_f64());
                let error = (found - sum.value).abs() / f64::max(sum.size, 1.0);
                worst = worse(worst, error);
            }
        }
        // f16 rounds to 2^-11 of a result, and sums of fp8 lose about as much of their terms. A missing or misplaced
        // element has a far larger error.
        if worst > 2e-3 {
            return Err(format!("{}: WRONG, error {worst:.1e}", self.workload).into());
        }
        Ok(format!("err {worst:.1e}"))
    }
}
