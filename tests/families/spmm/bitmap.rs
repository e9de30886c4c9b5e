//! Bitmap tiles: every row of the family forced by name, over ragged shapes, modes and epilogues, exact on integers.
//! NaN in columns without a tile has no effect, and every run returns equal bits. The CPU executor runs the same suite.

use crate::support::assert_error;
use crate::support::rows::{exact_by_row, product_by_row, products_here, rows_repeat};
use crate::support::runs::output_of;
use crate::support::{
    Expression, Problem, Rng, WIDEST, assert_matrix, gpu, on_both, on_gpu, small,
};
use einsparse::formats::{CsrPattern, bf16, f16};
use einsparse::registry::{Dtype, Row, Scalar, WalkKind};
use einsparse::{Context, Error, Operand};

/// Rows, columns and density: around a lane's rows, a square, a tile, a panel, and more stages than are in flight;
/// full, empty, and deep enough to be split.
const SHAPES: [([usize; 2], f64); 11] = [
    ([0, 8], 0.5),
    ([3, 0], 0.5),
    ([1, 1], 1.0),
    ([17, 31], 0.4),
    ([64, 64], 1.0),
    ([65, 129], 0.5),
    ([200, 97], 0.0),
    ([257, 320], 0.1),
    ([321, 1000], 0.3),
    ([70, 5000], 0.06),
    ([513, 2049], 0.15),
];
const WIDTHS: [usize; 7] = [1, 8, 15, 16, 33, 64, 88];

/// Returns a pattern in which every entry has the same probability; one row in nine is empty.
fn scattered([rows, cols]: [usize; 2], density: f64, seed: u64) -> CsrPattern {
    let mut rng = Rng(seed);
    let (mut offsets, mut columns) = (vec![0], Vec::new());
    for row in 0..rows {
        let there = density == 1.0 || row % 9 != 4;
        columns.extend((0..cols as u32).filter(|_| rng.unit().abs() < density && there));
        offsets.push(columns.len() as u32);
    }
    CsrPattern::new(rows, cols, offsets, columns).unwrap()
}

/// Returns the format that a row of the family reads.
fn format_of(row: &Row) -> Option<&'static str> {
    match row.walk {
        WalkKind::Bitmap => Some("bitmap"),
        WalkKind::Bytemap => Some("bytemap"),
        _ => None,
    }
}

fn rows_of(dtype: Dtype) -> impl Iterator<Item = &'static Row> {
    products_here().filter(move |row| format_of(row).is_some() && row.dtype == dtype)
}

/// Returns the number of columns of B for a row of the table: 1 for rows of one column, otherwise `n`.
fn width(row: &Row, n: usize) -> usize {
    if row.columns == 1 { 1 } else { n }
}

/// Runs one expression on one problem. B has aligned rows if the kernel requires it; the row stride of C is aligned or
/// odd.
fn run<T: Scalar>(
    context: &Context,
    row: &Row,
    (problem, x): (&Problem<T>, &Expression),
    n: usize,
    odd: bool,
) {
    let a = problem.sparse(format_of(row).unwrap());
    let a = context.upload(a).unwrap();
    let aligned = n.next_multiple_of(16) + 16;
    let b_leading = match (row.vector, row.columns) {
        (1, _) => n + 1,
        // One column without gaps.
        (_, 1) => 1,
        _ => aligned,
    };
    let nan = T::from_f64(f64::NAN);
    let b = context.upload_strided(&problem.b(n), b_leading, nan);
    let leading = if odd { n + 3 } else { aligned };
    let operands = ((&a).into(), &b.unwrap());
    exact_by_row(context, row, (problem, x), operands, leading);
}

fn every_row<T: Scalar>(context: &Context) {
    let expressions = Expression::all();
    let rows: Vec<&Row> = rows_of(T::DTYPE).collect();
    let mut turns = vec![0; rows.len()];
    for (shape, density) in SHAPES {
        let pattern = scattered(shape, density, 3);
        let problem = Problem::<T>::integers(pattern, 7, WIDEST);
        for (row, turn) in rows.iter().zip(&mut turns) {
            for n in WIDTHS.into_iter().filter(|&n| n == width(row, n)) {
                if small() && *turn % 3 != 0 && n != 33 {
                    *turn += 1;
                    continue;
                }
                let x = expressions[*turn % expressions.len()];
                run(context, row, (&problem, &x), n, *turn % 3 == 0);
                *turn += 1;
            }
        }
    }
}

on_both! {
    bitmap_is_exact: cpu [every_row::<f16>], gpu [every_row::<f16>, every_row::<bf16>];
}

/// A NaN or an infinity in B reaches every row that has an entry there, and at most all rows (`zeros = Dense`). Finite
/// columns of B give unchanged results.
#[test]
fn bitmap_keeps_nan_in_its_column_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let pattern = scattered([200, 300], 0.2, 5);
    for row in rows_of(f16::DTYPE) {
        let n = width(row, 64);
        let own = n.min(6) - 1;
        let problem = Problem::<f16>::integers(pattern.clone(), 9, n);
        let a = problem.sparse(format_of(row).unwrap());
        let clean = product_by_row(&gpu, row, &a, &problem.b(n));
        for (at, value) in [(0, f64::NAN), (133, f64::INFINITY), (299, f64::NAN)] {
            let mut b = problem.b(n);
            b.values_mut()[at * n + own] = f16::from_f64(value);
            let c = product_by_row(&gpu, row, &a, &b);
            for r in 0..200 {
                let owns = pattern.columns()[pattern.row(r)].contains(&(at as u32));
                let entry = c[r * n + own].to_f64();
                assert!(!owns || !entry.is_finite(), "{} row {r}", row.name);
                for j in (0..n).filter(|&j| j != own) {
                    assert_eq!(c[r * n + j], clean[r * n + j], "{} row {r}", row.name);
                }
            }
        }
    }
}

/// Random values: within rounding of the exact sum, and equal bits in every run.
fn repeats<T: Scalar>(context: &Context) {
    let pattern = scattered([700, 3100], 0.25, 11);
    for n in [1, 64] {
        let rows = rows_of(T::DTYPE).filter(|row| (row.columns == 1) == (n == 1));
        let rows: Vec<_> = rows.map(|row| (row, format_of(row).unwrap())).collect();
        rows_repeat::<T>(context, &rows, (pattern.clone(), Rng(13)), n);
    }
}

#[test]
fn bitmap_repeats_bit_for_bit_on_the_gpu() {
    on_gpu(&[repeats::<f16>, repeats::<bf16>]);
}

/// A plan accepts other values of the pattern, and refuses another pattern.
#[test]
fn a_bitmap_plan_is_for_one_pattern_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let (shape, n) = ([130, 200], 16);
    let problem = Problem::<f16>::integers(scattered(shape, 0.3, 1), 2, n);
    let other = Problem::<f16>::integers(scattered(shape, 0.3, 4), 2, n);
    let stored = problem.sparse("bitmap");
    let mut a = gpu.upload(&stored).unwrap();
    let wrong = gpu.upload(other.sparse("bitmap")).unwrap();
    let b = gpu.upload_dense(&problem.b(n)).unwrap();
    let text = "C[m,n] = A[m,k] * B[k,n]";
    let plan = {
        let operands = [("A", Operand::from(&a)), ("B", (&b).into())];
        gpu.plan(text).operands(&operands).build().unwrap()
    };
    let doubled = stored.map_values(|v| f16::from_f64(2.0 * v.to_f64()));
    a.set_values(doubled.values()).unwrap();
    let operands = [("A", Operand::from(&a)), ("B", (&b).into())];
    let mut c = output_of(&gpu, &plan, &operands);
    let found = c.to_storage().unwrap();
    assert_matrix(&"doubled", &found, (shape[0], n, n), |r, j| {
        f16::from_f64(2.0 * problem.exact(r, j).to_f64())
    });
    let operands = [("A", Operand::from(&wrong)), ("B", (&b).into())];
    let refused = plan.run(&operands, &mut c, &gpu.stream().unwrap());
    assert_error!(refused.unwrap_err(), Error::OtherPattern { name, .. } if name == "A");
}

/// Every seventh tile of a row of tiles is full, and the others are nearly empty. Small stages arrive before the large
/// ones that precede them, and warps without rows run ahead.
#[test]
fn bitmap_stages_of_uneven_size_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let k = 7 * 64 * 9;
    for (m, n) in [(64, 16), (192, 16), (448, 16), (64, 1), (192, 1), (448, 1)] {
        let mut rng = Rng(m as u64);
        let (mut offsets, mut columns) = (vec![0], Vec::new());
        for _ in 0..m {
            columns.extend((0..k as u32).filter(|c| c / 64 % 7 == 3 || rng.unit().abs() < 0.02));
            offsets.push(columns.len() as u32);
        }
        let pattern = CsrPattern::new(m, k, offsets, columns).unwrap();
        let rows = rows_of(f16::DTYPE)
            .filter(|row| row.walk == WalkKind::Bitmap && (row.columns == 1) == (n == 1));
        let rows: Vec<_> = rows.map(|row| (row, "bitmap")).collect();
        rows_repeat::<f16>(&gpu, &rows, (pattern, rng), n);
    }
}
