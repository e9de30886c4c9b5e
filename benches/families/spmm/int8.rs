//! `int8`: SpMM and SDDMM of unstructured 8-bit integers into int32. Baselines are einsparse in f16, cuSPARSE in int8
//! (only SpMM), and the dense int8 product of cuBLASLt.
//!
//! In the record of SDDMM `m` and `k` are S's extents, and `n` is the number of terms. Sums of integers must be exact,
//! those in f16 within rounding.

use crate::peers::cublaslt::{self, Kind};
use crate::peers::whole::{ALGORITHMS, WholeSpmm};
use crate::prelude::*;
use einsparse::registry::Dtype;

const SDDMM: &str = "S[m,n] = X[m,k] * Y[n,k]";
/// Max bytes of a dense matrix. It excludes graphs.
const DENSE_LIMIT: usize = 1 << 30;
/// Number of compared rows of C and of S.
const CHECKED: usize = 61;
/// Max error of sums in f16, relative to the sum of magnitudes: rounding of terms in f32 and of the output.
const HALF: f64 = 1e-3;

/// (name, pattern, columns of B or terms)
fn spmm_cases() -> Vec<(&'static str, Source, usize)> {
    let uniform = |density| Source::Uniform(4096, 4096, density);
    vec![
        ("uniform-4096x4096-d0.3", uniform(0.3), 256),
        ("uniform-4096x4096-d0.1", uniform(0.1), 256),
        ("uniform-4096x4096-d0.05", uniform(0.05), 256),
        ("uniform-4096x4096-d0.02", uniform(0.02), 256),
        ("uniform-8192x2048-d0.1", Source::Uniform(8192, 2048, 0.1), 128),
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

/// Offset of the second operand in the sequence of values.
const SECOND: usize = 77;

/// One pattern, with data that its cases share.
struct Case<'a> {
    bench: &'a Bench<'a>,
    problem: Problem,
    n: usize,
}

pub fn run(bench: &Bench<'_>) -> Result<()> {
    for (op, cases) in [("spmm", spmm_cases()), ("sddmm", sddmm_cases())] {
        for (name, source, n) in cases {
            let case = Case { bench: &bench.anew()?, problem: Problem::of(op, name, source)?, n };
            if op == "spmm" {
                case.spmm()?;
                case.spmm_half()?;
                if let Err(reason) = case.spmm_cusparse() {
                    println!("left out: {name} of cuSPARSE: {reason}");
                }
            } else {
                case.sddmm::<i8, i32>("int8")?;
                case.sddmm::<f16, f16>("f16")?;
            }
            if let Err(reason) = case.dense() {
                println!("left out: {name} dense: {reason}");
            }
        }
    }
    Ok(())
}

impl Case<'_> {
    fn add(&self, [engine, variant, dtype]: [&str; 3], note: &str, times: &Times) -> Result<()> {
        let (m, k, nnz) = self.problem.extents();
        let (p, extents) = (&self.problem, [m, k, self.n]);
        let row = Row::new(p.op, &p.workload, extents, nnz, dtype)
            .by(engine, variant)
            .timed(times)
            .flops(2.0 * nnz as f64 * self.n as f64)
            .note(note);
        self.bench.add(match variant {
            "dense" => row.dense(),
            _ => row.strict(),
        })
    }

    fn matrix<T: Scalar>(&self, values: impl Fn(usize) -> T) -> Result<SparseTensor<T>> {
        let (_, _, nnz) = self.problem.extents();
        let values = (0..nnz).map(values).collect();
        let a = Csr::new(self.problem.pattern.clone(), values)?;
        Ok(self.bench.context.upload(a)?)
    }

    fn factor<T: Scalar>(&self, rows: usize, start: usize) -> Result<Tensor<T>> {
        let values = (0..rows * self.n).map(|i| value(i + start)).collect();
        self.bench.tensor(&[rows, self.n], values)
    }

    /// Measures the plan's choice, and every other row of the family.
    fn spmm(&self) -> Result<()> {
        let (bench, (m, k, _)) = (self.bench, self.problem.extents());
        let (a, b) = (self.matrix::<i8>(value)?, self.factor::<i8>(k, SECOND)?);
        let operands: [(&str, Operand<'_, i8>); 2] = [("A", (&a).into()), ("B", (&b).into())];
        let mut c = bench.zeros::<i32>(&[m, self.n])?;
        let mut variants = vec![None];
        while let Some(variant) = variants.pop() {
            let (plan, _) = bench.plan::<i8, i32>(SPMM, &operands, &forced(variant))?;
            if variant.is_none() {
                let all = plan.choice().candidates.iter();
                variants.extend(all.map(|c| Some(c.name)));
            }
            let times = bench.measure(|| plan.run(&operands, &mut c, &bench.stream))?;
            let c = c.to_dense()?;
            self.compare_product::<i8, i32>(c.values(), 0.0)?;
            let name = plan.variant();
            match variant {
                None => self.add(["einsparse", "auto", "int8"], name, &times)?,
                Some(_) => self.add(["einsparse", name, "int8"], "", &times)?,
            }
        }
        Ok(())
    }

    fn spmm_half(&self) -> Result<()> {
        let (bench, (m, k, _)) = (self.bench, self.problem.extents());
        let (a, b) = (self.matrix::<f16>(value)?, self.factor::<f16>(k, SECOND)?);
        let operands: [(&str, Operand<'_, f16>); 2] = [("A", (&a).into()), ("B", (&b).into())];
        let (plan, _) = bench.plan::<f16, f16>(SPMM, &operands, &Options::default())?;
        let mut c = bench.zeros(&[m, self.n])?;
        let times = bench.measure(|| plan.run(&operands, &mut c, &bench.stream))?;
        self.compare_product::<f16, f16>(c.to_dense()?.values(), HALF)?;
        self.add(["einsparse", "auto", "f16"], plan.variant(), &times)
    }

    /// Measures the fastest algorithm of cuSPARSE.
    fn spmm_cusparse(&self) -> Result<()> {
        let (bench, (m, k, nnz)) = (self.bench, self.problem.extents());
        let values: Vec<i8> = (0..nnz).map(value).collect();
        let b: Vec<i8> = (0..k * self.n).map(|i| value(i + SECOND)).collect();
        let pattern = &self.problem.pattern;
        let sparse = [
            Buffer::from_slice(pattern.offsets())?,
            Buffer::from_slice(pattern.columns())?,
            Buffer::from_slice(&values)?,
        ];
        let dense = [Buffer::from_slice(&b)?, Buffer::new(m * self.n * 4)?];
        let (sparse, dense) = (sparse.each_ref(), dense.each_ref());
        let mut best: Option<(&str, Times)> = None;
        let mut last = "".into();
        for (name, algorithm) in ALGORITHMS {
            let extents = ([m, k, self.n], nnz);
            let product = WholeSpmm::new(bench.gpu, algorithm, extents, sparse, dense);
            let times = product.and_then(|product| {
                dense[1].fill(0xff, bench.gpu.stream)?;
                let times = bench.measure(|| product.run())?;
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
        self.add(["cusparse", name, "int8"], "", &times)
    }

    fn sddmm<In: Scalar, Out: Scalar>(&self, dtype: &str) -> Result<()> {
        let (bench, (m, n, _)) = (self.bench, self.problem.extents());
        let mut s = self.matrix::<Out>(|_| Out::ZERO)?;
        let (x, y) = (self.factor::<In>(m, 0)?, self.factor::<In>(n, SECOND)?);
        let operands: [(&str, Operand<'_, In>); 2] = [("X", (&x).into()), ("Y", (&y).into())];
        let options = Options::default();
        let plan = (bench.context)
            .plan::<In>(SDDMM)
            .operands(&operands)
            .sparse_output(&s)
            .options(&options)
            .build()?;
        let times = bench.measure(|| plan.run(&operands, &mut s, &bench.stream))?;
        let relative = if dtype == "int8" { 0.0 } else { HALF };
        self.compare_samples::<In, Out>(&s, relative)?;
        self.add(["einsparse", "auto", dtype], plan.variant(), &times)
    }

    /// Measures the whole product. A and B are both contiguous along k, as the library requires.
    fn dense(&self) -> Result<()> {
        let (bench, (m, k, _)) = (self.bench, self.problem.extents());
        // S is `[m, k]` and has `n` terms.
        let extents = match self.problem.op {
            "spmm" => [m, k, self.n],
            _ => [m, self.n, k],
        };
        let [rows, depth, columns] = extents;
        if rows.max(columns) * depth > DENSE_LIMIT || rows * columns * 4 > DENSE_LIMIT {
            return Ok(());
        }
        let some = |n: usize| Buffer::from_slice(&(0..n).map(value::<i8>).collect::<Vec<_>>());
        let (a, b) = (some(rows * depth)?, some(columns * depth)?);
        let c = Buffer::new(rows * columns * 4)?;
        let product = cublaslt::Dense::new(bench.gpu, Kind::Int8, extents)?;
        c.fill(0xff, bench.gpu.stream)?;
        let times = bench.measure(|| product.run([a.ptr, b.ptr, c.ptr]))?;
        let mut found = vec![0i32; rows * columns];
        c.read(0, bytemuck::cast_slice_mut(&mut found))?;
        for row in (0..rows).step_by(rows.div_ceil(CHECKED)) {
            let column = row * 7 % columns;
            let term = |i| product_of::<i8>(row * depth + i, column * depth + i);
            let sum = (0..depth).map(term).collect();
            compare([row, column], found[row * columns + column], sum, 0.0)?;
        }
        self.add(["cublaslt", "dense", "int8"], "both factors along k", &times)
    }

    /// Compares some rows of C with their sums. The error of a wrong element begins with WRONG.
    fn compare_product<In: Scalar, Out: Scalar>(&self, c: &[Out], relative: f64) -> Result<()> {
        let pattern = &self.problem.pattern;
        let (m, _, _) = self.problem.extents();
        for row in (0..m).step_by(m.div_ceil(CHECKED)) {
            let mut sums = vec![Sum::default(); self.n];
            for p in pattern.row(row) {
                let from = pattern.columns()[p] as usize * self.n + SECOND;
                for (j, sum) in sums.iter_mut().enumerate() {
                    sum.add(product_of::<In>(p, from + j));
                }
            }
            for (j, (&found, sum)) in c[row * self.n..].iter().zip(sums).enumerate() {
                compare([row, j], found, sum, relative)?;
            }
        }
        Ok(())
    }

    /// Compares some rows of S with their sums.
    fn compare_samples<In: Scalar, Out: Scalar>(
        &self,
        s: &SparseTensor<Out>,
        relative: f64,
    ) -> Result<()> {
        let s = s.to_host()?;
        let pattern = &self.problem.pattern;
        let (m, _, _) = self.problem.extents();
        for row in (0..m).step_by(m.div_ceil(CHECKED)) {
            for p in pattern.row(row) {
                let column = pattern.columns()[p] as usize;
                let (x, y) = (row * self.n, column * self.n + SECOND);
                let sum = (0..self.n).map(|i| product_of::<In>(x + i, y + i)).collect();
                compare([row, column], s.values()[p], sum, relative)?;
            }
        }
        Ok(())
    }
}

/// Product of two values. Sums of integers are exact, because they are far below 2^53.
fn product_of<T: Scalar>(a: usize, b: usize) -> f64 {
    value::<T>(a).to_f64() * value::<T>(b).to_f64()
}

fn compare<T: Scalar>([row, column]: [usize; 2], found: T, sum: Sum, relative: f64) -> Result<()> {
    let (found, wanted) = (found.to_f64(), sum.value);
    // A comparison with NaN is false, so NaN counts as an error.
    if (found - wanted).abs() <= relative * sum.size {
        return Ok(());
    }
    Err(format!("WRONG: ({row}, {column}) is {found}, not {wanted}").into())
}
