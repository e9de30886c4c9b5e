//! The transpose of a matrix of blocks times a dense one, without a transposed copy: every row of the table that does
//! it, against exact integers.

use super::rows::force;
use crate::support::{GUARD, assert_matrix, fill_blocks, gpu, spread};
use einsparse::formats::{AnySparse, Csr, Dense, bf16, f16};
use einsparse::registry::{Dtype, Row, Scalar, products};
use einsparse::{Context, Operand, Options};

/// Small integers, so that every sum is exact.
fn integer(i: usize) -> f64 {
    (i * 7919 % 9) as f64 - 4.0
}

/// `C[k,n] (= | +=) A[m,k] * B[m,n]` for ragged extents, several widths and formats.
fn check<T: Scalar>(context: &Context, edge: usize, options: &Options, what: &str) {
    let lens: Vec<usize> = (0..300usize.div_ceil(edge)).map(|r| r * 5 % 4).collect();
    let blocks = 400usize.div_ceil(edge);
    let (rows, columns) = (lens.len() * edge - 3, blocks * edge - 5);
    let pattern = fill_blocks(&spread(&lens, blocks), (edge, edge), rows, columns);
    let nnz = pattern.columns().len();
    let values: Vec<T> = (0..nnz).map(|i| T::from_f64(integer(i))).collect();
    let csr = Csr::new(pattern, values).unwrap();
    for (n, format) in [
        (8, "bsr"),
        (72, "blockcoo"),
        (264, "bsr"),
        (130, "blockcoo"),
    ] {
        let a = AnySparse::from(csr.clone())
            .convert(format!("{format}:{edge}x{edge}").parse().unwrap())
            .unwrap();
        let a = context.upload(a).unwrap();
        let b =
            Dense::from_fn(vec![rows, n], |i| T::from_f64(integer(i[0] * n + i[1] + 3))).unwrap();
        let mut sums = vec![0f64; columns * n];
        for r in 0..rows {
            for p in csr.pattern().row(r) {
                let (c, x) = (
                    csr.pattern().columns()[p] as usize,
                    csr.values()[p].to_f64(),
                );
                for j in 0..n {
                    sums[c * n + j] += x * b.values()[r * n + j].to_f64();
                }
            }
        }
        let leading = n.next_multiple_of(8) + 8;
        let b = context
            .upload_strided(&b, leading, T::from_f64(f64::NAN))
            .unwrap();
        for (text, start) in [
            ("C[k,n] = A[m,k] * B[m,n]", f64::NAN),
            ("C[k,n] += A[m,k] * B[m,n]", 5.0),
        ] {
            let operands =
                || -> Vec<(&str, Operand<'_, T>)> { vec![("A", (&a).into()), ("B", (&b).into())] };
            let first = Dense::new([columns, n], vec![T::from_f64(start); columns * n]).unwrap();
            let mut c = context
                .upload_strided(&first, leading, T::from_f64(GUARD))
                .unwrap();
            let mut planned = operands();
            planned.push(("C", (&c).into()));
            let plan = context.plan(text, &planned, options).unwrap();
            let stream = context.stream().unwrap();
            plan.run(&operands(), &mut c, &stream).unwrap();
            stream.synchronize().unwrap();
            let before = if start.is_nan() { 0.0 } else { start };
            let found = c.to_storage().unwrap();
            assert_matrix(
                &(what, text, n, format),
                &found,
                (columns, n, leading),
                |r, j| T::from_f64(sums[r * n + j] + before),
            );
        }
    }
}

fn rows() -> impl Iterator<Item = &'static Row> {
    products().filter(|row| row.transposes())
}

#[test]
fn every_row_multiplies_by_the_transpose_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for row in rows() {
        // Pieces of 64 x 64 also make up larger blocks.
        let edges: &[usize] = if row.block.0 == 64 {
            &[64, 128]
        } else {
            &[row.block.0 as usize]
        };
        for &edge in edges {
            match row.dtype {
                Dtype::F16 => check::<f16>(&gpu, edge, &force(row), row.name),
                Dtype::Bf16 => check::<bf16>(&gpu, edge, &force(row), row.name),
                other => panic!("{}: no case for {}", row.name, other.name()),
            }
        }
    }
}

#[test]
fn the_cpu_multiplies_by_the_transpose() {
    for edge in [16, 64] {
        check::<f32>(&Context::cpu(), edge, &Options::default(), "cpu");
    }
    assert!(rows().count() > 0);
}
