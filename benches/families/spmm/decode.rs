//! Products of a language model's decoding: large unstructured weights, few columns. Ours on bitmap tiles beside cuBLAS' dense
//! product of the same matrix, in one run.

use crate::Arguments;
use crate::device::{Buffer, Gpu, Result};
use crate::ours::text;
use crate::peers::cublas::CuBlas;
use crate::problems::Dtype;
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::formats::{AnySparse, Dense, bf16, convert, f16};
use einsparse::registry::Scalar;
use einsparse::{Context, Operand, Options, SparseTensor, Stream, Tensor};
use rayon::prelude::*;
use std::time::Instant;

/// Rows and columns of the weights.
pub const EXTENTS: [[usize; 2]; 5] = [
    [4096, 4096],
    [11008, 4096],
    [4096, 11008],
    [28672, 8192],
    [8192, 28672],
];
pub const DENSITIES: [f64; 4] = [0.5, 0.3, 0.1, 0.05];
/// Up to here places are also stored as bytes: further up they weigh more than 1.1 bits a position.
pub const BYTES_UP_TO: f64 = 0.11;
const COLUMNS: [usize; 4] = [8, 16, 32, 64];
/// Every so many rows of C are checked.
const CHECKED: usize = 997;

fn hash(i: usize) -> u64 {
    let mixed = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Uniform in -1 .. 1.
fn unit(i: usize) -> f64 {
    (hash(i) >> 40) as f64 / (1 << 23) as f64 - 1.0
}

/// Measures all shapes and densities.
pub fn run(gpu: &Gpu, arguments: &Arguments, out: &mut Recorder) -> Result<()> {
    for [m, k] in EXTENTS {
        for density in DENSITIES {
            if !arguments.named(&format!("decode-{m}x{k}-d{density}")) {
                continue;
            }
            for dtype in arguments.asked(&[Dtype::F16, Dtype::Bf16]) {
                let case = (m, k, density);
                match dtype {
                    Dtype::F16 => weights::<f16>(gpu, arguments, out, case, dtype)?,
                    Dtype::Bf16 => weights::<bf16>(gpu, arguments, out, case, dtype)?,
                    other => println!("decode has no {other}"),
                }
            }
        }
    }
    Ok(())
}

fn weights<T: Scalar>(
    gpu: &Gpu,
    arguments: &Arguments,
    out: &mut Recorder,
    (m, k, density): (usize, usize, f64),
    dtype: Dtype,
) -> Result<()> {
    let threshold = (density * (1u64 << 32) as f64) as u64;
    let element = |i: usize| {
        if hash(i) & 0xffff_ffff < threshold {
            T::from_f64(unit(i))
        } else {
            T::ZERO
        }
    };
    let values: Vec<T> = (0..m * k).into_par_iter().map(element).collect();
    let dense = Dense::new(vec![m, k], values).map_err(text)?;
    let context = Context::cuda(0).map_err(text)?;
    let nnz = dense.values().par_iter().filter(|&&v| v != T::ZERO).count();
    let mut forms = vec![Stored::new(&context, nnz, || {
        Ok(convert::dense_to_bitmap(&dense).map_err(text)?.into())
    })?];
    if density <= BYTES_UP_TO {
        let csr = convert::dense_to_csr(&dense).map_err(text)?;
        forms.push(Stored::new(&context, nnz, || {
            Ok(convert::csr_to_bytemap(&csr).map_err(text)?.into())
        })?);
    }
    let bench = Bench {
        gpu,
        effort: arguments.effort(),
        // SAFETY: the bench's stream belongs to the primary context and outlives this function.
        stream: unsafe { Stream::from_raw(gpu.stream.cast()) },
        forms,
        for_cublas: Buffer::from_slice(dense.values())?,
        dense,
        context,
        extents: [m, k],
        nnz,
        name: format!("decode-{m}x{k}-d{density}"),
        dtype,
    };
    let columns = match arguments.columns.as_slice() {
        [] => &COLUMNS[..],
        asked => asked,
    };
    for &n in columns {
        for stored in &bench.forms {
            bench.ours(stored, n, arguments.auto, out)?;
        }
        bench.peer(n, out)?;
    }
    Ok(())
}

/// One matrix with everything that its cases share.
struct Bench<'a, T> {
    gpu: &'a Gpu,
    effort: Effort,
    context: Context,
    stream: Stream,
    forms: Vec<Stored<T>>,
    dense: Dense<T>,
    for_cublas: Buffer,
    extents: [usize; 2],
    nnz: usize,
    name: String,
    dtype: Dtype,
}

/// The weights in one format.
struct Stored<T> {
    on_gpu: SparseTensor<T>,
    note: String,
}

impl<T: Scalar> Stored<T> {
    fn new(
        context: &Context,
        nnz: usize,
        convert: impl FnOnce() -> Result<AnySparse<T>>,
    ) -> Result<Self> {
        let start = Instant::now();
        let a = convert()?;
        let convert_ms = start.elapsed().as_secs_f64() * 1e3;
        // Places, and values that are no entries.
        let index: usize = a.arrays().iter().map(|array| array.data.len() * 4).sum();
        let bytes = index + (a.slots() - nnz) * size_of::<T>();
        let places: usize = a.shape().iter().product();
        let note = format!(
            "{}, {:.4} bits a position beside the values, converted in {convert_ms:.0} ms",
            a.format(),
            bytes as f64 * 8.0 / places as f64
        );
        let on_gpu = context.upload(a).map_err(text)?;
        Ok(Stored { on_gpu, note })
    }
}

impl<T: Scalar> Bench<'_, T> {
    fn b(&self, n: usize) -> Result<Dense<T>> {
        let values = (0..self.extents[1] * n).into_par_iter();
        let values = values.map(|i| T::from_f64(unit(i + 7777)));
        Dense::new(vec![self.extents[1], n], values.collect()).map_err(text)
    }

    fn row(&self, n: usize, engine: &str, variant: &str, times: Times) -> Row {
        let [m, k] = self.extents;
        // What the format holds, by bits and by values, and the dense operands.
        let a = m * k / 8 + self.nnz * 2;
        let bytes = (a + (m + k) * n * 2) as f64;
        Row {
            op: "spmm".into(),
            workload: self.name.clone(),
            engine: engine.into(),
            variant: variant.into(),
            m,
            k,
            n,
            nnz: self.nnz,
            dtype: self.dtype.to_string(),
            ms: times.cold,
            ms_warm: Some(times.warm),
            gflops: Some(2.0 * self.nnz as f64 * n as f64 / times.cold / 1e6),
            gbps: Some(bytes / times.cold / 1e6),
            zeros: "dense".into(),
            ..Row::default()
        }
    }

    /// What the plan takes, and every other kernel that it could.
    fn ours(
        &self,
        stored: &Stored<T>,
        n: usize,
        auto: bool,
        recorder: &mut Recorder,
    ) -> Result<()> {
        let host = self.b(n)?;
        let b = self.context.upload_dense(&host).map_err(text)?;
        let operands: [(&str, Operand<'_, T>); 2] =
            [("A", (&stored.on_gpu).into()), ("B", (&b).into())];
        let planned = |options: &Options| {
            let expression = "C[m,n] = A[m,k] * B[k,n]";
            self.context
                .plan(expression, &operands, options)
                .map_err(text)
        };
        let mut c = self.context.zeros(&[self.extents[0], n]).map_err(text)?;
        let chosen = planned(&Options::default())?;
        let candidates = chosen.choice().candidates.iter();
        let wanted = if auto { 1 } else { usize::MAX };
        for (i, name) in candidates.map(|c| c.name).take(wanted).enumerate() {
            let start = Instant::now();
            let plan = planned(&Options {
                variant: Some(name.into()),
                ..Options::default()
            })?;
            let prepare_ms = start.elapsed().as_secs_f64() * 1e3;
            let times = measure(self.gpu, self.effort, &mut || {
                plan.run(&operands, &mut c, &self.stream).map_err(text)
            })?;
            self.check(&host, &c)?;
            let variant = if i == 0 { "auto" } else { name };
            recorder.add(Row {
                prepare_ms: Some(prepare_ms),
                prepared_bytes: Some(plan.workspace_bytes()),
                note: format!("{name} on {}", stored.note),
                ..self.row(n, "einsparse", variant, times)
            })?;
        }
        Ok(())
    }

    /// The dense product.
    fn peer(&self, n: usize, recorder: &mut Recorder) -> Result<()> {
        let library = match CuBlas::open(self.gpu, false) {
            Ok(library) => library,
            Err(reason) => {
                println!("cublas left out: {reason}");
                return Ok(());
            }
        };
        let [m, k] = self.extents;
        let b = Buffer::from_slice(self.b(n)?.values())?;
        let c = Buffer::new(m * n * 2)?;
        let times = measure(self.gpu, self.effort, &mut || {
            library.gemm(self.dtype, [m, k, n], [self.for_cublas.ptr, b.ptr, c.ptr])
        })?;
        recorder.add(self.row(n, "cublas", "dense", times))
    }

    /// Some rows of C against sums in f64.
    fn check(&self, b: &Dense<T>, c: &Tensor<T>) -> Result<()> {
        let c = c.to_dense().map_err(text)?;
        let ([m, k], n) = (self.extents, b.shape()[1]);
        let (out, _) = self.dtype.roundoff();
        let rows: Vec<usize> = (0..m).step_by(CHECKED).collect();
        let dense = self.dense.values();
        rows.par_iter().try_for_each(|&row| {
            let line = &dense[row * k..][..k];
            for column in 0..n {
                let terms = line.iter().zip(b.values()[column..].iter().step_by(n));
                let (mut sum, mut size) = (0.0, 0.0);
                for (x, y) in terms {
                    let product = x.to_f64() * y.to_f64();
                    (sum, size) = (sum + product, size + product.abs());
                }
                let found = c.values()[row * n + column].to_f64();
                let bound = out * f64::abs(sum) + size * (k as f64).sqrt() * 2f64.powi(-22) + 1e-6;
                if (found - sum).abs() > bound || !found.is_finite() {
                    return Err(format!(
                        "WRONG: {found} in row {row}, column {column}, not {sum}"
                    ));
                }
            }
            Ok(())
        })
    }
}
