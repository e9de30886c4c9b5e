//! 2:4 matrices of 8-bit integers, `C[m,n] = A[m,k] * B[n,k]`. The baseline is the dense product of cuBLASLt.

use crate::peers::cublaslt::{self, Kind};
use crate::prelude::*;
use einsparse::formats::{Nm, NmPattern};

const EXPRESSION: &str = "C[m,n] = A[m,k] * B[n,k]";
/// Rows and columns of A, columns of C.
const EXTENTS: [usize; 2] = [4096, 8192];
/// Stride of the checked rows and columns of C.
const CHECKED: usize = 331;
/// Pairs of positions of two nonzeros in four columns.
const PAIRS: [u32; 6] = [0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110];

fn hash(i: usize) -> u64 {
    (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn value(i: usize) -> i8 {
    (hash(i) >> 56) as i8
}

pub fn run(bench: &Bench<'_>) -> Result<()> {
    for extent in EXTENTS {
        let words = (0..extent * extent / 32).map(|i| {
            let pair = |g: usize| PAIRS[(hash(8 * i + g) >> 40) as usize % 6] << (4 * g);
            (0..8).map(pair).fold(0, |word, pair| word | pair)
        });
        let pattern = NmPattern::new(extent, extent, words.collect())?;
        let values: Vec<i8> = (0..extent * extent / 2).map(value).collect();
        let dense: Vec<i8> = (0..extent * extent).map(|i| value(i + 77)).collect();
        let a = Nm::new(pattern, values)?;
        let bench = &bench.anew()?;
        let case = Case {
            bench,
            on_gpu: bench.context.upload(&a)?,
            a,
            b: Dense::new(vec![extent; 2], dense)?,
            extent,
        };
        case.ours::<i32>()?;
        case.ours::<f16>()?;
        case.dense()?;
    }
    Ok(())
}

/// One pattern, with data that its cases share.
struct Case<'a> {
    bench: &'a Bench<'a>,
    a: Nm<i8>,
    on_gpu: SparseTensor<i8>,
    b: Dense<i8>,
    extent: usize,
}

impl Case<'_> {
    fn row(&self, op: &str, kind: &str, nnz: usize, times: &Times) -> Row {
        let workload = format!("{kind}-{}", self.extent);
        Row::new(op, workload, [self.extent; 3], nnz, "int8")
            .timed(times)
            .flops(2.0 * nnz as f64 * self.extent as f64)
            .dense()
    }

    /// Measures every kernel that the plan could select, into one output type.
    fn ours<Out: Scalar>(&self) -> Result<()> {
        let (bench, extent) = (self.bench, self.extent);
        let b = bench.upload(&self.b)?;
        let operands: [(&str, Operand<'_, i8>); 2] =
            [("A", (&self.on_gpu).into()), ("B", (&b).into())];
        let planned = |name| bench.plan::<i8, Out>(EXPRESSION, &operands, &forced(name));
        let mut c = bench.zeros(&[extent; 2])?;
        let (chosen, _) = planned(None)?;
        let candidates = chosen.choice().candidates.iter();
        for (i, name) in candidates.map(|c| c.name).enumerate() {
            let (plan, _) = planned(Some(name))?;
            let times = bench.measure(|| plan.run(&operands, &mut c, &bench.stream))?;
            self.check(&c)?;
            let taken = if i == 0 { ", the plan's choice" } else { "" };
            let row = self.row("nm_spmm", "nm2:4", extent * extent / 2, &times);
            let note = format!("int8 into {}, B as [n,k]{taken}", Out::NAME);
            bench.add(row.ours(name).note(note))?;
        }
        Ok(())
    }

    /// Times the dense product of the same extents.
    fn dense(&self) -> Result<()> {
        let extent = self.extent;
        let opened = cublaslt::Dense::new(self.bench.gpu, Kind::Int8, [extent; 3]);
        let Some(product) = or_said(opened, "cublaslt") else {
            return Ok(());
        };
        let a = Buffer::from_slice(self.b.values())?;
        let c = Buffer::new(extent * extent * 4)?;
        let times = (self.bench).measure(|| product.run([a.ptr, a.ptr, c.ptr]))?;
        let row = self.row("gemm", "dense", extent * extent, &times);
        (self.bench).add(row.by("cublaslt", "dense").note("into int32"))
    }

    /// Compares some elements of C with exact sums, rounded as C.
    fn check<Out: Scalar>(&self, c: &Tensor<Out>) -> Result<()> {
        let c = c.to_dense()?;
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
                    )
                    .into());
                }
            }
        }
        Ok(())
    }
}
