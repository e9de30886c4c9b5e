//! `int8`: SpMM and SDDMM of unstructured 8-bit integers into int32. Baselines are einsparse in f16, cuSPARSE in int8
//! (only SpMM), and the dense int8 product of cuBLASLt.
//!
//! In the record of SDDMM `m` and `k` are S's extents, and `n` is the number of terms. Sums of integers must be exact,
//! those in f16 within rounding.

use crate::check::gathered;
use crate::peers::cublaslt::{self, Kind};
use crate::peers::cusparse::{ALGORITHMS, Handle, whole};
use crate::prelude::*;
use crate::values::sequence;

const SDDMM: &str = "S[m,n] = X[m,k] * Y[n,k]";
/// Max bytes of a dense matrix. It excludes graphs.
const DENSE_LIMIT: usize = 1 << 30;
/// Number of compared rows of C and of S.
const CHECKED: usize = 61;
/// Max error of sums in f16, relative to the sum of magnitudes: rounding of terms in f32 and of the output.
const HALF: f64 = 1e-3;

/// (operation, name, pattern, columns of B or terms)
fn cases() -> Vec<(&'static str, &'static str, Source, usize)> {
    let uniform = |density| Source::Uniform(4096, 4096, density);
    vec![
        ("spmm", "uniform-4096x4096-d0.3", uniform(0.3), 256),
        ("spmm", "uniform-4096x4096-d0.1", uniform(0.1), 256),
        ("spmm", "uniform-4096x4096-d0.05", uniform(0.05), 256),
        ("spmm", "uniform-4096x4096-d0.02", uniform(0.02), 256),
        ("spmm", "uniform-8192x2048-d0.1", Source::Uniform(8192, 2048, 0.1), 128),
        ("spmm", "uniform-2048x512-d0.1", Source::Uniform(2048, 512, 0.1), 64),
        ("spmm", "rmat17", Source::Rmat(17), 128),
        ("spmm", "banded1M-27", Source::Banded(1 << 20, 27), 128),
        ("sddmm", "uniform-4096x4096-d0.1", uniform(0.1), 64),
        ("sddmm", "uniform-4096x4096-d0.1", uniform(0.1), 256),
        ("sddmm", "uniform-4096x4096-d0.02", uniform(0.02), 256),
        ("sddmm", "attention-4096", Source::Attention(4096, 256, 0.05), 64),
        ("sddmm", "attention-12288", Source::Attention(12288, 256, 0.05), 128),
        ("sddmm", "rmat17", Source::Rmat(17), 128),
    ]
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
    for (op, name, source, n) in cases() {
        let case = Case { bench: &bench.anew()?, problem: Problem::of(op, name, source)?, n };
        if op == "spmm" {
            case.spmm::<i8, i32>(0.0)?;
            case.spmm::<f16, f16>(HALF)?;
            or_said(case.spmm_cusparse(), &format!("{name} of cuSPARSE"));
        } else {
            case.sddmm::<i8, i32>(0.0)?;
            case.sddmm::<f16, f16>(HALF)?;
        }
        or_said(case.dense(), &format!("{name} dense"));
    }
    Ok(())
}

impl Case<'_> {
    fn row(&self, [engine, variant, dtype]: [&str; 3]) -> Row {
        let ((m, k, nnz), p) = (self.problem.extents(), &self.problem);
        Row::new(p.op, &p.workload, [m, k, self.n], nnz, dtype)
            .by(engine, variant)
            .flops(2.0 * nnz as f64 * self.n as f64)
            .strict()
    }

    /// Numbers of compared rows.
    fn rows(&self) -> impl Iterator<Item = usize> {
        let m = self.problem.extents().0;
        (0..m).step_by(m.div_ceil(CHECKED))
    }

    fn product_error<In: Scalar, Out: Scalar>(&self, c: &[Out], share: f64) -> f64 {
        let n = self.n;
        let terms = gathered(
            &self.problem.pattern,
            |p| value::<In>(p).to_f64(),
            |k, j| value::<In>(k * n + j + SECOND).to_f64(),
        );
        rows_error(c, n, self.rows(), terms, relative(share))
    }

    /// Measures the plan's choice, and for integers every other row of the family.
    fn spmm<In: Scalar, Out: Scalar>(&self, share: f64) -> Result<()> {
        let (bench, n, (_, k, nnz)) = (self.bench, self.n, self.problem.extents());
        let a = bench
            .context
            .upload(Csr::new(self.problem.pattern.clone(), sequence::<In>(nnz, 0))?)?;
        let b = bench.tensor(&[k, n], sequence::<In>(k * n, SECOND))?;
        let operands = ab(&a, &b);
        let (plan, _) = bench.plan::<In, Out>(SPMM, &operands, &Options::default())?;
        let all = plan.choice().candidates.iter().map(|c| Some(c.name));
        for variant in [None].into_iter().chain(all).take(if share > 0.0 { 1 } else { 99 }) {
            let row = self.row(["einsparse", variant.unwrap_or("auto"), In::NAME]);
            bench.product::<In, Out>(row, (SPMM, &forced(variant)), &operands, |c| {
                Ok(self.product_error::<In, Out>(c.to_dense()?.values(), share))
            })?;
        }
        Ok(())
    }

    /// Measures the fastest algorithm of cuSPARSE.
    fn spmm_cusparse(&self) -> Result<()> {
        let (bench, (m, k, nnz)) = (self.bench, self.problem.extents());
        let pattern = &self.problem.pattern;
        let sparse = [
            Buffer::from_slice(pattern.offsets())?,
            Buffer::from_slice(pattern.columns())?,
            Buffer::from_slice(&sequence::<i8>(nnz, 0))?,
        ];
        let b = sequence::<i8>(k * self.n, SECOND);
        let dense = [Buffer::from_slice(&b)?, Buffer::new(m * self.n * 4)?];
        let (sparse, dense) = (sparse.each_ref(), dense.each_ref());
        let handle = Handle::open(bench.gpu)?;
        let measured = |(name, algorithm)| -> Result<Row> {
            let extents = ([m, k, self.n], nnz);
            let product = whole(&handle, algorithm, extents, sparse, dense)?;
            dense[1].fill(0xff, bench.gpu.stream)?;
            let times = bench.measure(|| product.run())?;
            let mut c = vec![0i32; m * self.n];
            dense[1].read(0, bytemuck::cast_slice_mut(&mut c))?;
            let row = self.row(["cusparse", name, "int8"]).timed(&times);
            Ok(row.error(self.product_error::<i8, i32>(&c, 0.0)))
        };
        // COO_ALG4 has no integers.
        let rows = ALGORITHMS.into_iter().take(3).filter_map(|own| or_said(measured(own), own.0));
        let right = rows.filter(|row| !row.is_wrong());
        let best = right.min_by(|a, b| a.ms.total_cmp(&b.ms));
        bench.add(best.ok_or("no algorithm")?)
    }

    fn sddmm<In: Scalar, Out: Scalar>(&self, share: f64) -> Result<()> {
        let (bench, k, (m, n, nnz)) = (self.bench, self.n, self.problem.extents());
        let pattern = &self.problem.pattern;
        let s = Csr::new(pattern.clone(), vec![Out::ZERO; nnz])?;
        let mut s = bench.context.upload(s)?;
        let x = bench.tensor(&[m, k], sequence::<In>(m * k, 0))?;
        let y = bench.tensor(&[n, k], sequence::<In>(n * k, SECOND))?;
        let operands = [("X", (&x).into()), ("Y", (&y).into())];
        let plan = bench.context.plan::<In>(SDDMM).operands(&operands);
        let plan = plan.sparse_output(&s).build()?;
        let row = self.row(["einsparse", "auto", In::NAME]).note(plan.variant());
        let run = |s: &mut SparseTensor<Out>| plan.run(&operands, s, &bench.stream);
        let check = |s: &SparseTensor<Out>| {
            let (s, error) = (s.to_host()?, relative(share));
            let of_row = |row: usize| {
                let errors = pattern.row(row).map(|p| {
                    let column = pattern.columns()[p] as usize;
                    let term = |i| term::<In>(row * k + i, column * k + i);
                    error(s.values()[p].to_f64(), &(0..k).map(term).collect())
                });
                errors.fold(0.0, worse)
            };
            Ok(self.rows().map(of_row).fold(0.0, worse))
        };
        bench.checked(row, &mut s, run, check).map(drop)
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
        let a = Buffer::from_slice(&sequence::<i8>(rows * depth, 0))?;
        let b = Buffer::from_slice(&sequence::<i8>(columns * depth, SECOND))?;
        let mut c = Buffer::new(rows * columns * 4)?;
        let product = cublaslt::Dense::new(bench.gpu, Kind::Int8, extents)?;
        c.fill(0xff, bench.gpu.stream)?;
        let row = self.row(["cublaslt", "dense", "int8"]).dense().note("both factors along k");
        let run = |c: &mut Buffer| product.run([a.ptr, b.ptr, c.ptr]);
        let check = |c: &Buffer| {
            let mut found = vec![0i32; rows * columns];
            c.read(0, bytemuck::cast_slice_mut(&mut found))?;
            let right = |row: usize| {
                let column = row * 7 % columns;
                let term = |i| term::<i8>(row * depth + i, column * depth + i);
                let sum: f64 = (0..depth).map(term).sum();
                f64::from(found[row * columns + column]) == sum
            };
            Ok(exact((0..rows).step_by(rows.div_ceil(CHECKED)).all(right)))
        };
        bench.checked(row, &mut c, run, check).map(drop)
    }
}

/// Product of two values of the first and the second operand. Sums of integers are exact, because they are far below
/// 2^53.
fn term<T: Scalar>(a: usize, b: usize) -> f64 {
    value::<T>(a).to_f64() * value::<T>(b + SECOND).to_f64()
}
