//! Two of four of 8-bit integers, `C[m,n] = A[m,k] * B[n,k]`, beside the dense product of cuBLASLt.

use crate::device::{Buffer, Gpu, Result};
use crate::peers::cublaslt::{self, Kind};
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::formats::{Dense, Nm, NmPattern, f16};
use einsparse::registry::Scalar;
use einsparse::{Context, Operand, Options, SparseTensor, Stream, Tensor};
use std::fmt::Display;

/// Rows and columns of A, columns of C.
const EXTENTS: [usize; 2] = [4096, 8192];
/// Every so many rows and columns of C are checked.
const CHECKED: usize = 331;
/// The pairs of places that two entries have in four columns.
const PAIRS: [u32; 6] = [0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110];

fn hash(i: usize) -> u64 {
    (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn value(i: usize) -> i8 {
    (hash(i) >> 56) as i8
}

/// Measures both extents.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    for extent in EXTENTS {
        let words = (0..extent * extent / 32).map(|i| {
            let pair = |g: usize| PAIRS[(hash(8 * i + g) >> 40) as usize % 6] << (4 * g);
            (0..8).map(pair).fold(0, |word, pair| word | pair)
        });
        let pattern = NmPattern::new(extent, extent, words.collect()).map_err(text)?;
        let values: Vec<i8> = (0..extent * extent / 2).map(value).collect();
        let dense: Vec<i8> = (0..extent * extent).map(|i| value(i + 77)).collect();
        let a = Nm::new(pattern, values).map_err(text)?;
        let context = Context::cuda(0).map_err(text)?;
        let bench = Bench {
            gpu,
            effort,
            // SAFETY: the bench's stream belongs to the primary context and outlives this function.
            stream: unsafe { Stream::from_raw(gpu.stream.cast()) },
            on_gpu: context.upload(a.clone()).map_err(text)?,
            a,
            b: Dense::new(vec![extent; 2], dense).map_err(text)?,
            context,
            extent,
        };
        bench.ours::<i32>(recorder)?;
        bench.ours::<f16>(recorder)?;
        bench.dense(recorder)?;
    }
    Ok(())
}

/// One pattern with everything that its cases share.
struct Bench<'a> {
    gpu: &'a Gpu,
    effort: Effort,
    context: Context,
    stream: Stream,
    a: Nm<i8>,
    on_gpu: SparseTensor<i8>,
    b: Dense<i8>,
    extent: usize,
}

impl Bench<'_> {
    fn row(&self, op: &str, engine: &str, variant: &str, nnz: usize, times: Times) -> Row {
        let extent = self.extent;
        Row {
            op: op.into(),
            engine: engine.into(),
            variant: variant.into(),
            m: extent,
            k: extent,
            n: extent,
            nnz,
            dtype: "int8".into(),
            ms: times.cold,
            ms_warm: Some(times.warm),
            gflops: Some(2.0 * nnz as f64 * extent as f64 / times.cold / 1e6),
            zeros: "dense".into(),
            ..Row::default()
        }
    }

    /// Every kernel that the plan would take, into one type.
    fn ours<Out: Scalar>(&self, recorder: &mut Recorder) -> Result<()> {
        let b = self.context.upload_dense(&self.b).map_err(text)?;
        let operands: [(&str, Operand<'_, i8>); 2] =
            [("A", (&self.on_gpu).into()), ("B", (&b).into())];
        let planned = |options: &Options| {
            let expression = "C[m,n] = A[m,k] * B[n,k]";
            let plan = self
                .context
                .plan_into::<i8, Out>(expression, &operands, options);
            plan.map_err(text)
        };
        let mut c = self.context.zeros(&[self.extent; 2]).map_err(text)?;
        let chosen = planned(&Options::default())?;
        let candidates = chosen.choice().candidates.iter();
        for (i, name) in candidates.map(|c| c.name).enumerate() {
            let plan = planned(&Options {
                variant: Some(name.into()),
                ..Options::default()
            })?;
            let times = measure(self.gpu, self.effort, &mut || {
                plan.run(&operands, &mut c, &self.stream).map_err(text)
            })?;
            self.check(&c)?;
            let taken = if i == 0 { ", the plan's choice" } else { "" };
            let nnz = self.extent * self.extent / 2;
            recorder.add(Row {
                workload: format!("nm2:4-{}", self.extent),
                note: format!("int8 into {}, B as [n,k]{taken}", Out::NAME),
                ..self.row("nm_spmm", "einsparse", name, nnz, times)
            })?;
        }
        Ok(())
    }

    /// The dense product of the same extents.
    fn dense(&self, recorder: &mut Recorder) -> Result<()> {
        let product = match cublaslt::Dense::new(self.gpu, Kind::Int8, [self.extent; 3]) {
            Ok(product) => product,
            Err(reason) => {
                println!("cublaslt left out: {reason}");
                return Ok(());
            }
        };
        let a = Buffer::from_slice(self.b.values())?;
        let c = Buffer::new(self.extent * self.extent * 4)?;
        let times = measure(self.gpu, self.effort, &mut || {
            product.run([a.ptr, a.ptr, c.ptr])
        })?;
        let nnz = self.extent * self.extent;
        recorder.add(Row {
            workload: format!("dense-{}", self.extent),
            note: "into int32".into(),
            ..self.row("gemm", "cublaslt", "dense", nnz, times)
        })
    }

    /// Some elements of C against exact sums, rounded as C is.
    fn check<Out: Scalar>(&self, c: &Tensor<Out>) -> Result<()> {
        let c = c.to_dense().map_err(text)?;
        let (extent, pattern) = (self.extent, self.a.pattern());
        for row in (0..extent).step_by(CHECKED) {
            let line = &self.a.values()[row * extent / 2..][..extent / 2];
            for column in (0..extent).step_by(CHECKED) {
                let b = &self.b.values()[column * extent..][..extent];
                let terms = line.iter().enumerate().map(|(slot, &x)| {
                    let place = pattern.positions(row, slot / 2)[slot % 2];
                    i64::from(x) * i64::from(b[slot / 2 * 4 + place as usize])
                });
                let wanted = Out::from_f64(terms.sum::<i64>() as f64);
                let found = c.get(&[row, column]);
                if found.map(|x| x.to_f64()) != Some(wanted.to_f64()) {
                    return Err(format!(
                        "WRONG: {found:?} in row {row}, column {column}, not {wanted:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}
