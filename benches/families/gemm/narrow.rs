//! Products of 8-bit operands, `C[m,n] = A[m,k] * B[n,k]`, of blocks and of 2:4 matrices. Baselines are f16 on the same
//! blocks, and the dense products of cuBLAS.
//!
//! fp8 and int8 require B as `[n, k]`; f16 is measured with both orders of B.

use super::blocks_terms;
use crate::peers::cublaslt::{self, Kind};
use crate::prelude::*;
use crate::problems;
use crate::values::sequence;
use einsparse::formats::{Bsr, BsrPattern, E4m3, E5m2, Nm, NmPattern, generate};
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
/// Extents of 2:4 matrices.
const EXTENTS: [usize; 2] = [4096, 8192];
/// Pairs of positions of two nonzeros in four columns.
const PAIRS: [u32; 6] = [0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110];
/// Stride of the checked rows of C.
const CHECKED: usize = 1331;
/// Max error relative to the sum of the terms' magnitudes. f16 rounds to 2^-11 of a result, and sums of fp8 lose about
/// as much of their terms. A missing or misplaced element has a far larger error.
const MOST: f64 = 2e-3;

pub fn run(bench: &Bench<'_>) -> Result<()> {
    dense(bench)?;
    for (edge, densities) in CASES {
        for &density in densities {
            let pattern = generate::blocks(EXTENT, EXTENT, (edge, edge), density, SEED)?;
            let case = Blocks {
                bench: &bench.anew()?,
                pattern: Arc::new(pattern),
                workload: format!("block{edge}-d{density}"),
            };
            case.measured::<f16, f16>(SPMM, "f16", "into f16, B as [k,n]")?;
            // f16 supports B as `[n, k]` only for blocks of at least 64.
            if edge >= 64 {
                case.measured::<f16, f16>(COLUMNS, "f16", "into f16, B as [n,k]")?;
            }
            case.measured::<E4m3, f16>(COLUMNS, "fp8", "e4m3 into f16, B as [n,k]")?;
            case.measured::<E5m2, f16>(COLUMNS, "fp8", "e5m2 into f16, B as [n,k]")?;
            case.measured::<i8, i32>(COLUMNS, "int8", "int8 into int32, B as [n,k]")?;
        }
    }
    Ok(())
}

/// Times dense products of the same extents.
fn dense(bench: &Bench<'_>) -> Result<()> {
    let row =
        |dtype, note| shaped("gemm", format!("dense-{EXTENT}"), dtype, EXTENT, 1.0).note(note);
    let a = Buffer::from_slice(&sequence::<f16>(EXTENT * EXTENT, 0))?;
    let half = (problems::Dtype::F16, [EXTENT; 3], Order::Rows);
    bench.whole(row("f16", "into f16").named("dense"), half, [a.ptr; 2])?;
    let fp8 = sequence::<E4m3>(EXTENT * EXTENT, 0);
    let fp8: &[u8] = bytemuck::cast_slice(&fp8);
    library(bench, row("fp8", "e4m3 into f16").named("dense"), Kind::Fp8, fp8)?;
    let fast = row("fp8", "e4m3 into f16, fast accumulation").named("dense-fast");
    library(bench, fast, Kind::Fp8Fast, fp8)?;
    let int8 = sequence::<i8>(EXTENT * EXTENT, 0);
    library(
        bench,
        row("int8", "into int32").named("dense"),
        Kind::Int8,
        bytemuck::cast_slice(&int8),
    )
}

/// Times a dense product of cuBLASLt. Types that the library does not support are skipped.
fn library(bench: &Bench<'_>, row: Row, kind: Kind, values: &[u8]) -> Result<()> {
    let opened = cublaslt::Dense::new(bench.gpu, kind, [row.m; 3]);
    let Some(product) = or_said(opened, &format!("{kind:?} of cublaslt")) else {
        return Ok(());
    };
    let (a, c) = (Buffer::from_slice(values)?, Buffer::new(4 * row.m * row.m)?);
    let row = Row { engine: "cublaslt".into(), ..row };
    bench.time(row, || product.run([a.ptr, a.ptr, c.ptr])).map(drop)
}

/// Row of a product of square matrices, of which A stores a share.
fn shaped(op: &str, workload: String, dtype: &str, extent: usize, share: f64) -> Row {
    let nnz = (share * (extent * extent) as f64).round() as usize;
    Row::new(op, workload, [extent; 3], nnz, dtype).flops(2.0 * nnz as f64 * extent as f64).dense()
}

/// One pattern of blocks.
struct Blocks<'a> {
    bench: &'a Bench<'a>,
    pattern: Arc<BsrPattern>,
    workload: String,
}

impl Blocks<'_> {
    /// Measures the plan's kernel.
    fn measured<In: Scalar, Out: Scalar>(
        &self,
        expression: &str,
        dtype: &str,
        note: &str,
    ) -> Result<()> {
        let (bench, (bm, bk)) = (self.bench, self.pattern.block());
        let slots = self.pattern.columns().len() * bm * bk;
        let a = Bsr::new(Arc::clone(&self.pattern), sequence::<In>(slots, 0))?;
        let b = Dense::new([EXTENT; 2], sequence::<In>(EXTENT * EXTENT, 77))?;
        let terms = blocks_terms(
            &self.pattern,
            |i| a.values()[i].to_f64(),
            |k, j| match expression {
                COLUMNS => b.values()[j * EXTENT + k].to_f64(),
                _ => b.values()[k * EXTENT + j].to_f64(),
            },
        );
        let (a_there, b_there) = (bench.context.upload(&a)?, bench.upload(&b)?);
        let share = slots as f64 / (EXTENT * EXTENT) as f64;
        let row = shaped("block_spmm", self.workload.clone(), dtype, EXTENT, share).note(note);
        let plan = (expression, &Options::default());
        bench.product::<In, Out>(row, plan, &ab(&a_there, &b_there), |c| {
            let rows = (0..EXTENT).step_by(CHECKED);
            Ok(rows_error(c.to_dense()?.values(), EXTENT, rows, terms, relative(MOST)))
        })?;
        Ok(())
    }
}

/// Measures 2:4 matrices of 8-bit integers.
pub fn two_of_four(bench: &Bench<'_>) -> Result<()> {
    for extent in EXTENTS {
        let bench = &bench.anew()?;
        let words = (0..extent * extent / 32).map(|i| {
            let pair = |g: usize| PAIRS[(values::hash(8 * i + g) >> 40) as usize % 6] << (4 * g);
            (0..8).map(pair).fold(0, |word, pair| word | pair)
        });
        let pattern = NmPattern::new(extent, extent, words.collect())?;
        let a = Nm::new(pattern, sequence::<i8>(extent * extent / 2, 0))?;
        let b = Dense::new([extent; 2], sequence::<i8>(extent * extent, 77))?;
        let there = (bench.context.upload(&a)?, bench.upload(&b)?);
        let operands = ab(&there.0, &there.1);
        kernels::<i32>(bench, &operands, (&a, &b))?;
        kernels::<f16>(bench, &operands, (&a, &b))?;
        let row = shaped("gemm", format!("dense-{extent}"), "int8", extent, 1.0).named("dense");
        library(bench, row.note("into int32"), Kind::Int8, bytemuck::cast_slice(b.values()))?;
    }
    Ok(())
}

/// Measures every kernel that the plan could select, into one output type. Sums are exact, and rounded as C.
fn kernels<Out: Scalar>(
    bench: &Bench<'_>,
    operands: &[(&str, Operand<'_, i8>)],
    (a, b): (&Nm<i8>, &Dense<i8>),
) -> Result<()> {
    let extent = b.shape()[0];
    let (chosen, _) = bench.plan::<i8, Out>(COLUMNS, operands, &Options::default())?;
    for (i, kernel) in chosen.choice().candidates.iter().enumerate() {
        let taken = if i == 0 { ", the plan's choice" } else { "" };
        let row = shaped("nm_spmm", format!("nm2:4-{extent}"), "int8", extent, 0.5)
            .note(format!("int8 into {}, B as [n,k]{taken}", Out::NAME));
        let plan = (COLUMNS, &forced(Some(kernel.name)));
        bench.product::<i8, Out>(row, plan, operands, |c| {
            let terms = |row: usize, sums: &mut [Sum]| {
                let line = &a.values()[row * extent / 2..][..extent / 2];
                for (slot, x) in line.iter().enumerate() {
                    let k = slot / 2 * 4 + a.pattern().positions(row, slot / 2)[slot % 2] as usize;
                    let of_b = |j: usize| f64::from(b.values()[j * extent + k]);
                    let x = f64::from(*x);
                    sums.iter_mut().enumerate().for_each(|(j, sum)| sum.add(x * of_b(j)));
                }
            };
            let rows = (0..extent).step_by(CHECKED);
            let error = |found: f64, sum: &Sum| exact(found == Out::from_f64(sum.value).to_f64());
            Ok(rows_error(c.to_dense()?.values(), extent, rows, terms, error))
        })?;
    }
    Ok(())
}
