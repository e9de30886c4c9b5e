//! `int8`: SpMM and SDDMM of 8-bit integers with single entries into int32; beside ours in f16, cuSPARSE of int8 (SpMM; it has no such
//! SDDMM) and the dense int8 product of cuBLASLt.
//!
//! In the record of SDDMM `m` and `k` are S's extents, and `n` is the number of terms. Sums of integers are exact, those in f16 within rounding.

use crate::device::{Buffer, Gpu, Result};
use crate::ours::text;
use crate::peers::cublaslt::{self, Kind};
use crate::peers::whole::{ALGORITHMS, WholeSpmm};
use crate::problems::{Problem, Source, Workload};
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::formats::{Csr, Dense, f16};
use einsparse::registry::{Dtype, Scalar};
use einsparse::{Context, Operand, Options, SparseTensor, Stream, Tensor};

const SPMM: &str = "C[m,n] = A[m,k] * B[k,n]";
const SDDMM: &str = "S[m,n] = X[m,k] * Y[n,k]";
/// A dense matrix above this is not built: graphs.
const DENSE_LIMIT: usize = 1 << 30;
/// Rows of C and of S that are compared.
const CHECKED: usize = 61;
/// What sums of f16 may be off, as a share of the sum of magnitudes: rounding of terms in f32 and of the output.
const HALF: f64 = 1e-3;

/// (name, pattern, columns of B or terms)
fn spmm_cases() -> Vec<(&'static str, Source, usize)> {
    let uniform = |density| Source::Uniform(4096, 4096, density);
    vec![
        ("uniform-4096x4096-d0.3", uniform(0.3), 256),
        ("uniform-4096x4096-d0.1", uniform(0.1), 256),
        ("uniform-4096x4096-d0.05", uniform(0.05), 256),
        ("uniform-4096x4096-d0.02", uniform(0.02), 256),
        (
            "uniform-8192x2048-d0.1",
            Source::Uniform(8192, 2048, 0.1),
            128,
        ),
        ("uniform-2048x512-d0.1", Source::Uniform(2048, 512, 0.1), 64),
        ("rmat17", Source::Rmat(17), 128),
        ("banded1M-27", Source::Banded(1 << 20, 27), 128),
    ]
}

fn sddmm_cases() -> Vec<(&'static str, Source, usize)> {
    let uniform = |density| Source::Uniform(4096, 4096, density);
    vec![
        ("uniform-4096x4096-d0.1", uniform(0.1), 64),
        ("uniform-4096x4096-d0.1", uniform(0.1), 256),
        ("uniform-4096x4096-d0.02", uniform(0.02), 256),
        ("attention-4096", Source::Attention(4096, 256, 0.05), 64),
        ("attention-12288", Source::Attention(12288, 256, 0.05), 128),
        ("rmat17", Source::Rmat(17), 128),
    ]
}

/// A byte of a hash: whole for integers, in -1..1 for floats.
fn value<T: Scalar>(i: usize) -> T {
    let hash = ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as f64 - 128.0;
    T::from_f64(match T::DTYPE {
        Dtype::Int8 => hash,
        _ => hash / 128.0,
    })
}

/// Where the second operand starts in the sequence of values.
const SECOND: usize = 77;

fn dense<T: Scalar>(context: &Context, shape: [usize; 2], start: usize) -> Result<Tensor<T>> {
    let all = (0..shape[0] * shape[1]).map(|i| value(i + start)).collect();
    let dense = Dense::new(shape.to_vec(), all).map_err(text)?;
    context.upload_dense(&dense).map_err(text)
}

/// One pattern, and what its cases share.
struct Bench<'a> {
    gpu: &'a Gpu,
    effort: Effort,
    recorder: &'a mut Recorder,
    context: Context,
    stream: Stream,
    problem: Problem,
    op: &'static str,
    n: usize,
}

/// Measures every case.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    for (op, cases) in [("spmm", spmm_cases()), ("sddmm", sddmm_cases())] {
        for (name, source, n) in cases {
            let problem = Problem::load(&Workload {
                op,
                name: name.to_owned(),
                source,
                ns: &[],
                dtypes: &[],
                quick: true,
            })?;
            let mut bench = Bench {
                gpu,
                effort,
                recorder,
                context: Context::cuda(0).map_err(text)?,
                // SAFETY: the bench's stream belongs to the primary context and outlives this function.
                stream: unsafe { Stream::from_raw(gpu.stream.cast()) },
                problem,
                op,
                n,
            };
            if op == "spmm" {
                bench.spmm()?;
                bench.spmm_half()?;
                if let Err(reason) = bench.spmm_cusparse() {
                    println!("left out: {name} of cuSPARSE: {reason}");
                }
            } else {
                bench.sddmm::<i8, i32>("int8")?;
                bench.sddmm::<f16, f16>("f16")?;
            }
            if let Err(reason) = bench.dense() {
                println!("left out: {name} dense: {reason}");
            }
        }
    }
    Ok(())
}

impl Bench<'_> {
    fn add(&mut self, names: [&str; 3], note: &str, times: Times) -> Result<()> {
        let (m, k, nnz) = self.problem.extents();
        let [engine, variant, dtype] = names;
        self.recorder.add(Row {
            op: self.op.into(),
            workload: self.problem.workload.clone(),
            engine: engine.into(),
            variant: variant.into(),
            m,
            k,
            n: self.n,
            nnz,
            dtype: dtype.into(),
            ms: times.cold,
            ms_warm: Some(times.warm),
            gflops: Some(2.0 * nnz as f64 * self.n as f64 / times.cold / 1e6),
            zeros: if variant == "dense" {
                "dense"
            } else {
                "strict"
            }
            .into(),
            note: note.into(),
            ..Row::default()
        })
    }

    fn matrix<T: Scalar>(&self, values: impl Fn(usize) -> T) -> Result<SparseTensor<T>> {
        let (_, _, nnz) = self.problem.extents();
        let values = (0..nnz).map(values).collect();
        let a = Csr::new(self.problem.pattern.clone(), values).map_err(text)?;
        self.context.upload(a).map_err(text)
    }

    /// What the plan takes, and every other row of the family.
    fn spmm(&mut self) -> Result<()> {
        let (m, k, _) = self.problem.extents();
        let (a, b) = (
            self.matrix::<i8>(value)?,
            dense::<i8>(&self.context, [k, self.n], SECOND)?,
        );
        let operands: [(&str, Operand<'_, i8>); 2] = [("A", (&a).into()), ("B", (&b).into())];
        let mut c = self.context.zeros::<i32>(&[m, self.n]).map_err(text)?;
        let mut variants = vec![None];
        while let Some(variant) = variants.pop() {
            let auto = variant.is_none();
            let options = Options {
                variant,
                ..Options::default()
            };
            let plan = self
                .context
                .plan_into::<i8, i32>(SPMM, &operands, &options)
                .map_err(text)?;
            if auto {
                let all = plan.choice().candidates.iter();
                variants.extend(all.map(|c| Some(c.name.to_owned())));
            }
            let times = measure(self.gpu, self.effort, &mut || {
                plan.run(&operands, &mut c, &self.stream).map_err(text)
            })?;
            let c = c.to_dense().map_err(text)?;
            self.compare_product::<i8, i32>(c.values(), 0.0)?;
            let name = plan.variant();
            if auto {
                self.add(["einsparse", "auto", "int8"], name, times)?;
            } else {
                self.add(["einsparse", name, "int8"], "", times)?;
            }
        }
        Ok(())
    }

    fn spmm_half(&mut self) -> Result<()> {
        let (m, k, _) = self.problem.extents();
        let (a, b) = (
            self.matrix::<f16>(value)?,
            dense::<f16>(&self.context, [k, self.n], SECOND)?,
        );
        let operands: [(&str, Operand<'_, f16>); 2] = [("A", (&a).into()), ("B", (&b).into())];
        let plan = self.context.plan(SPMM, &operands, &Options::default());
        let plan = plan.map_err(text)?;
        let mut c = self.context.zeros(&[m, self.n]).map_err(text)?;
        let times = measure(self.gpu, self.effort, &mut || {
            plan.run(&operands, &mut c, &self.stream).map_err(text)
        })?;
        let c = c.to_dense().map_err(text)?;
        self.compare_product::<f16, f16>(c.values(), HALF)?;
        self.add(["einsparse", "auto", "f16"], plan.variant(), times)
    }

    /// The best of the algorithms that it has.
    fn spmm_cusparse(&mut self) -> Result<()> {
        let (m, k, nnz) = self.problem.extents();
        let values: Vec<i8> = (0..nnz).map(value).collect();
        let b: Vec<i8> = (0..k * self.n).map(|i| value(i + SECOND)).collect();
        let pattern = &self.problem.pattern;
        let sparse = [
            Buffer::from_slice(pattern.offsets())?,
            Buffer::from_slice(pattern.columns())?,
            Buffer::from_slice(&values)?,
        ];
        let dense = [Buffer::from_slice(&b)?, Buffer::new(m * self.n * 4)?];
        let extents = ([m, k, self.n], nnz);
        let mut best: Option<(&str, Times)> = None;
        let mut last = String::new();
        for (name, algorithm) in ALGORITHMS {
            let product = WholeSpmm::new(
                self.gpu,
                algorithm,
                extents,
                sparse.each_ref(),
                dense.each_ref(),
            );
            let times = product.and_then(|product| {
                dense[1].fill(0xff, self.gpu.stream)?;
                let times = measure(self.gpu, self.effort, &mut || product.run())?;
                let mut c = vec![0i32; m * self.n];
                dense[1].read(0, bytemuck::cast_slice_mut(&mut c))?;
                self.compare_product::<i8, i32>(&c, 0.0)?;
                Ok(times)
            });
            match times {
                Ok(times) if best.is_none_or(|(_, known)| times.cold < known.cold) => {
                    best = Some((name, times));
                }
                Ok(_) => {}
                Err(reason) => last = reason,
            }
        }
        let (name, times) = best.ok_or(last)?;
        self.add(["cusparse", name, "int8"], "", times)
    }

    fn sddmm<In: Scalar, Out: Scalar>(&mut self, dtype: &str) -> Result<()> {
        let (m, n, _) = self.problem.extents();
        let mut s = self.matrix::<Out>(|_| Out::ZERO)?;
        let (x, y) = (
            dense::<In>(&self.context, [m, self.n], 0)?,
            dense::<In>(&self.context, [n, self.n], SECOND)?,
        );
        let operands: [(&str, Operand<'_, In>); 2] = [("X", (&x).into()), ("Y", (&y).into())];
        let plan = self
            .context
            .plan_sampled_into::<In, Out>(SDDMM, &operands, &s, &Options::default())
            .map_err(text)?;
        let times = measure(self.gpu, self.effort, &mut || {
            plan.run(&operands, &mut s, &self.stream).map_err(text)
        })?;
        let relative = if dtype == "int8" { 0.0 } else { HALF };
        self.compare_samples::<In, Out>(&s, relative)?;
        self.add(["einsparse", "auto", dtype], plan.variant(), times)
    }

    /// The whole product, A and B both along k, which is what the library takes.
    fn dense(&mut self) -> Result<()> {
        let (m, k, _) = self.problem.extents();
        // S is `[m, k]` of `n` terms.
        let extents = if self.op == "spmm" {
            [m, k, self.n]
        } else {
            [m, self.n, k]
        };
        let [rows, depth, columns] = extents;
        if rows.max(columns) * depth > DENSE_LIMIT || rows * columns * 4 > DENSE_LIMIT {
            return Ok(());
        }
        let some = |n: usize| Buffer::from_slice(&(0..n).map(value::<i8>).collect::<Vec<_>>());
        let (a, b) = (some(rows * depth)?, some(columns * depth)?);
        let c = Buffer::new(rows * columns * 4)?;
        let product = cublaslt::Dense::new(self.gpu, Kind::Int8, extents)?;
        c.fill(0xff, self.gpu.stream)?;
        let times = measure(self.gpu, self.effort, &mut || {
            product.run([a.ptr, b.ptr, c.ptr])
        })?;
        let mut found = vec![0i32; rows * columns];
        c.read(0, bytemuck::cast_slice_mut(&mut found))?;
        for row in (0..rows).step_by(rows.div_ceil(CHECKED)) {
            let column = row * 7 % columns;
            let mut sum = (0.0, 0.0);
            for i in 0..depth {
                let terms = [row * depth + i, column * depth + i].map(value::<i8>);
                add(&mut sum, terms[0], terms[1]);
            }
            compare([row, column], found[row * columns + column], sum, 0.0)?;
        }
        self.add(["cublaslt", "dense", "int8"], "both factors along k", times)
    }

    /// Some rows of C against their sums; an error says what is WRONG.
    fn compare_product<In: Scalar, Out: Scalar>(&self, c: &[Out], relative: f64) -> Result<()> {
        let pattern = &self.problem.pattern;
        let (m, _, _) = self.problem.extents();
        for row in (0..m).step_by(m.div_ceil(CHECKED)) {
            let mut sums = vec![(0f64, 0f64); self.n];
            for p in pattern.row(row) {
                let (a, from) = (value::<In>(p), pattern.columns()[p] as usize * self.n);
                for (j, sum) in sums.iter_mut().enumerate() {
                    add(sum, a, value::<In>(from + j + SECOND));
                }
            }
            for (j, (&found, sum)) in c[row * self.n..].iter().zip(sums).enumerate() {
                compare([row, j], found, sum, relative)?;
            }
        }
        Ok(())
    }

    /// The same of some rows of S.
    fn compare_samples<In: Scalar, Out: Scalar>(
        &self,
        s: &SparseTensor<Out>,
        relative: f64,
    ) -> Result<()> {
        let s = s.to_host().map_err(text)?;
        let pattern = &self.problem.pattern;
        let (m, _, _) = self.problem.extents();
        for row in (0..m).step_by(m.div_ceil(CHECKED)) {
            for p in pattern.row(row) {
                let column = pattern.columns()[p] as usize;
                let mut sum = (0.0, 0.0);
                for i in 0..self.n {
                    let (x, y) = (row * self.n + i, column * self.n + i + SECOND);
                    add(&mut sum, value::<In>(x), value::<In>(y));
                }
                compare([row, column], s.values()[p], sum, relative)?;
            }
        }
        Ok(())
    }
}

/// Adds a term to a sum and to that of the magnitudes. Exact for integers: they stay far below 2^53.
fn add<T: Scalar>((sum, size): &mut (f64, f64), a: T, b: T) {
    let term = a.to_f64() * b.to_f64();
    *sum += term;
    *size += term.abs();
}

fn compare<T: Scalar>(
    [row, column]: [usize; 2],
    found: T,
    (sum, size): (f64, f64),
    relative: f64,
) -> Result<()> {
    let found = found.to_f64();
    // A NaN is as far off as can be.
    if (found - sum).abs() <= relative * size {
        return Ok(());
    }
    Err(format!("WRONG: ({row}, {column}) is {found}, not {sum}"))
}
