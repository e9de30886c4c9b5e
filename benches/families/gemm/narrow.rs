//! Products of 8-bit operands, `C[m,n] = A[m,k] * B[n,k]`, beside f16 on the same blocks and the dense products of cuBLAS.
//!
//! fp8 and int8 take B as `[n, k]`; f16 is measured with both orders of B.

use crate::device::{Buffer, Gpu, Result};
use crate::peers::cublas::CuBlas;
use crate::peers::cublaslt::{self, Kind};
use crate::problems::{self, SEED};
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::formats::{Bsr, BsrPattern, Dense, E4m3, E5m2, f16, generate};
use einsparse::registry::{Dtype, Scalar};
use einsparse::{Context, Operand, Options, SparseTensor, Stream, Tensor};
use std::fmt::Display;
use std::sync::Arc;

/// Rows and columns of A, columns of C.
const EXTENT: usize = 4096;
const PLAIN: &str = "C[m,n] = A[m,k] * B[k,n]";
const COLUMNS: &str = "C[m,n] = A[m,k] * B[n,k]";
/// Block edges and densities.
const CASES: [(usize, &[f64]); 3] = [
    (128, &[1.0, 0.5, 0.2, 0.1, 0.05]),
    (64, &[0.5, 0.2, 0.1, 0.05]),
    (32, &[0.5, 0.2, 0.1, 0.05]),
];
/// Every so many rows and columns of C are checked.
const CHECKED: usize = 331;

/// Eight bits of a hash: whole for integers, in -1..1 for floats.
fn value<T: Scalar>(i: usize) -> T {
    let hash = ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as f64 - 127.5;
    T::from_f64(match T::DTYPE {
        Dtype::Int8 => hash,
        _ => hash / 128.0,
    })
}

/// One pattern with everything that its cases share.
struct Bench<'a> {
    gpu: &'a Gpu,
    effort: Effort,
    recorder: &'a mut Recorder,
    context: Context,
    stream: Stream,
    pattern: Arc<BsrPattern>,
    workload: String,
}

/// Measures every case.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    dense(gpu, effort, recorder)?;
    for (edge, densities) in CASES {
        for &density in densities {
            let pattern = generate::blocks(EXTENT, EXTENT, (edge, edge), density, SEED);
            let mut bench = Bench {
                gpu,
                effort,
                recorder,
                context: Context::cuda(0).map_err(text)?,
                // SAFETY: the bench's stream belongs to the primary context and outlives this function.
                stream: unsafe { Stream::from_raw(gpu.stream.cast()) },
                pattern: Arc::new(pattern.map_err(text)?),
                workload: format!("block{edge}-d{density}"),
            };
            bench.half(PLAIN)?;
            // f16 has B as `[n, k]` for blocks of 64 and more.
            if edge >= 64 {
                bench.half(COLUMNS)?;
            }
            bench.narrow::<E4m3, f16>("fp8")?;
            bench.narrow::<E5m2, f16>("fp8")?;
            bench.narrow::<i8, i32>("int8")?;
        }
    }
    Ok(())
}

/// Dense products of the same extents; a kind that the library refuses is left out.
fn dense(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    let half: Vec<f16> = (0..EXTENT * EXTENT).map(value).collect();
    let fp8: Vec<E4m3> = (0..EXTENT * EXTENT).map(value).collect();
    let whole: Vec<i8> = (0..EXTENT * EXTENT).map(value).collect();
    let c = Buffer::new(EXTENT * EXTENT * 4)?;
    let cublas = CuBlas::open(gpu, false)?;
    let a = Buffer::from_slice(&half)?;
    let addresses = [a.ptr, a.ptr, c.ptr];
    let times = measure(gpu, effort, &mut || {
        cublas.gemm(problems::Dtype::F16, [EXTENT; 3], addresses)
    })?;
    let row = |engine: &str, variant: &str, dtype: &str, note: &str, times: Times| Row {
        workload: format!("dense-{EXTENT}"),
        note: note.into(),
        ..shaped("gemm", engine, variant, dtype, EXTENT * EXTENT, times)
    };
    recorder.add(row("cublas", "dense", "f16", "into f16", times))?;
    let bytes: [(Kind, &str, &str, &str, &[u8]); 3] = [
        (
            Kind::Fp8,
            "dense",
            "fp8",
            "e4m3 into f16",
            bytemuck::cast_slice(&fp8),
        ),
        (
            Kind::Fp8Fast,
            "dense-fast",
            "fp8",
            "e4m3 into f16, fast accumulation",
            bytemuck::cast_slice(&fp8),
        ),
        (
            Kind::Int8,
            "dense",
            "int8",
            "into int32",
            bytemuck::cast_slice(&whole),
        ),
    ];
    for (kind, variant, dtype, note, values) in bytes {
        let product = match cublaslt::Dense::new(gpu, kind, [EXTENT; 3]) {
            Ok(product) => product,
            Err(reason) => {
                println!("{kind:?} of cublaslt left out: {reason}");
                continue;
            }
        };
        let a = Buffer::from_slice(values)?;
        let times = measure(gpu, effort, &mut || product.run([a.ptr, a.ptr, c.ptr]))?;
        recorder.add(row("cublaslt", variant, dtype, note, times))?;
    }
    Ok(())
}

/// A row of a product of these extents.
fn shaped(op: &str, engine: &str, variant: &str, dtype: &str, nnz: usize, times: Times) -> Row {
    Row {
        op: op.into(),
        engine: engine.into(),
        variant: variant.into(),
        m: EXTENT,
        k: EXTENT,
        n: EXTENT,
        nnz,
        dtype: dtype.into(),
        ms: times.cold,
        ms_warm: Some(times.warm),
        gflops: Some(2.0 * nnz as f64 * EXTENT as f64 / times.cold / 1e6),
        zeros: "dense".into(),
        ..Row::default()
    }
}

impl Bench<'_> {
    fn slots(&self) -> usize {
        let (bm, bk) = self.pattern.block();
        self.pattern.columns().len() * bm * bk
    }

    fn operands<T: Scalar>(&self) -> Result<(SparseTensor<T>, Tensor<T>)> {
        let values = (0..self.slots()).map(value).collect();
        let a = Bsr::new(Arc::clone(&self.pattern), values).map_err(text)?;
        let b = Dense::from_fn(vec![EXTENT; 2], |i| value(i[0] * EXTENT + i[1] + 77));
        let b = self.context.upload_dense(&b.map_err(text)?).map_err(text)?;
        Ok((self.context.upload(a).map_err(text)?, b))
    }

    /// f16 into f16, by the kernel that the plan takes.
    fn half(&mut self, expression: &str) -> Result<()> {
        let (a, b) = self.operands::<f16>()?;
        let operands: [(&str, Operand<'_, f16>); 2] = [("A", (&a).into()), ("B", (&b).into())];
        let plan = self
            .context
            .plan(expression, &operands, &Options::default());
        let plan = plan.map_err(text)?;
        let mut c = self.context.zeros(&[EXTENT; 2]).map_err(text)?;
        let times = measure(self.gpu, self.effort, &mut || {
            plan.run(&operands, &mut c, &self.stream).map_err(text)
        })?;
        let error = self.error::<f16, f16>(&c, expression == COLUMNS)?;
        let axes = if expression == COLUMNS {
            "[n,k]"
        } else {
            "[k,n]"
        };
        self.add(
            plan.variant(),
            "f16",
            format!("into f16, B as {axes}; {error}"),
            times,
        )
    }

    /// 8-bit operands into a wider output.
    fn narrow<In: Scalar, Out: Scalar>(&mut self, dtype: &str) -> Result<()> {
        let (a, b) = self.operands::<In>()?;
        let operands: [(&str, Operand<'_, In>); 2] = [("A", (&a).into()), ("B", (&b).into())];
        let options = Options::default();
        let plan = self
            .context
            .plan_into::<In, Out>(COLUMNS, &operands, &options);
        let plan = plan.map_err(text)?;
        let mut c = self.context.zeros(&[EXTENT; 2]).map_err(text)?;
        let times = measure(self.gpu, self.effort, &mut || {
            plan.run(&operands, &mut c, &self.stream).map_err(text)
        })?;
        let error = self.error::<In, Out>(&c, true)?;
        let note = format!("{} into {}, B as [n,k]; {error}", In::NAME, Out::NAME);
        self.add(plan.variant(), dtype, note, times)
    }

    fn add(&mut self, variant: &str, dtype: &str, note: String, times: Times) -> Result<()> {
        let row = shaped(
            "block_spmm",
            "einsparse",
            variant,
            dtype,
            self.slots(),
            times,
        );
        self.recorder.add(Row {
            workload: self.workload.clone(),
            note,
            ..row
        })
    }

    /// The largest error among some elements of C, relative to the sum of the terms' magnitudes.
    fn error<In: Scalar, Out: Scalar>(&self, c: &Tensor<Out>, columns: bool) -> Result<String> {
        let (bm, bk) = self.pattern.block();
        let c = c.to_dense().map_err(text)?;
        let mut worst = 0f64;
        for row in (0..EXTENT).step_by(CHECKED) {
            let offsets = &self.pattern.offsets()[row / bm..];
            for column in (0..EXTENT).step_by(CHECKED) {
                let (mut sum, mut size) = (0.0, 0.0);
                for p in offsets[0] as usize..offsets[1] as usize {
                    let first = self.pattern.columns()[p] as usize * bk;
                    for i in 0..bk {
                        let k = first + i;
                        let at = if columns {
                            column * EXTENT + k
                        } else {
                            k * EXTENT + column
                        };
                        let a = value::<In>((p * bm + row % bm) * bk + i).to_f64();
                        let term = a * value::<In>(at + 77).to_f64();
                        sum += term;
                        size += term.abs();
                    }
                }
                let found = c.get(&[row, column]).map_or(f64::NAN, |x| x.to_f64());
                let error = (found - sum).abs() / f64::max(size, 1.0);
                worst = if error.is_nan() {
                    error
                } else {
                    worst.max(error)
                };
            }
        }
        // f16 rounds to 2^-11 of a result, sums of fp8 lose about as much of their terms; an element that is missing or
        // misplaced is off by far more.
        if worst.is_nan() || worst > 2e-3 {
            return Err(format!("{}: WRONG, error {worst:.1e}", self.workload));
        }
        Ok(format!("err {worst:.1e}"))
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}
