//! Implicit zeros and padding are never multiplied: NaN and Inf at positions without a nonzero, and at positions with
//! one.

use crate::support::dense::{nan, strided};
use crate::support::rows::{by_type, force, formats, products_here, takes_any};
use crate::support::runs::{finish, plan_of};
use crate::support::{GUARD, Problem, fill_blocks, on_both, small, spread};
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, PAD};
use einsparse::kernels::abi::HALF;
use einsparse::kernels::families::WINDOW;
use einsparse::registry::{Row, Scalar, WalkKind, Zeros};
use einsparse::{Context, Operand};

const N: usize = 64;

/// A pattern without nonzeros in its even columns (block columns).
fn odd_columns(row: &Row) -> CsrPattern {
    let (bm, bk) = match row.walk {
        // The blocks are tiles of the product, independent of A.
        WalkKind::Filled => (1, 1),
        _ => (row.block.0 as usize, row.block.1 as usize),
    };
    let (lens, cols): (Vec<usize>, usize) = match row.walk {
        WalkKind::Block => ((0..6).collect(), 5),
        _ if row.depth < 1401 => ((0..40).chain([500]).collect(), 500),
        _ => ((0..40).chain([700]).collect(), 700),
    };
    let every = spread(&lens, cols);
    let odd = every.columns().iter().map(|c| 2 * c + 1).collect();
    let odd = CsrPattern::new(lens.len(), 2 * cols + 1, every.offsets().to_vec(), odd).unwrap();
    // One column of the last block is past the edge.
    fill_blocks(&odd, (bm, bk), lens.len() * bm, (2 * cols + 1) * bk - usize::from(bk > 1))
}

/// Runs `C = A * B` with a forced row.
fn run<T: Scalar>(
    context: &Context,
    row: &Row,
    a: &AnySparse<T>,
    values: &[T],
    b: &Dense<T>,
) -> Vec<T> {
    let mut a = context.upload(a).unwrap();
    a.set_values(values).unwrap();
    let b = strided(context, b, N + 16, T::from_f64(f64::NAN));
    let operands: [(&str, Operand<'_, T>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    let plan = plan_of(context, "C[m,n] = A[m,k] * B[k,n]", &operands, &force(row));
    let mut c = strided(context, &nan(plan.out_shape()), N, T::from_f64(GUARD));
    finish(context, |stream| plan.run(&operands, &mut c, stream));
    c.to_dense().unwrap().into_values()
}

/// Copies the values with NaN in every slot of padding. Blocks are padded as a whole.
fn nan_in_padding<T: Scalar>(a: &AnySparse<T>) -> Vec<T> {
    let mut values = a.values().to_vec();
    let arrays = a.arrays();
    let columns = arrays.iter().map(|array| array.data).max_by_key(|data| data.len());
    let slots = columns.filter(|data| !data.is_empty()).unwrap_or(&[]);
    let each = values.len() / slots.len().max(1);
    for (slot, _) in slots.iter().enumerate().filter(|(_, column)| **column == PAD) {
        values[slot * each..][..each].fill(T::from_f64(f64::NAN));
    }
    values
}

/// Rows that multiply this row of B: those with a nonzero in its block column. In the families `wgmma` and `vectors`,
/// also the other rows among the 64 (8) rows of C that are computed together.
fn owners<T: Scalar>(a: &Csr<T>, row: &Row, column: usize) -> Vec<bool> {
    let block = row.block.1 as usize;
    let together = match row.module {
        "wgmma" => HALF,
        "vectors" => WINDOW as usize,
        _ => 1,
    };
    let rows = a.shape()[0];
    let owns = |r: usize| {
        a.pattern().columns()[a.pattern().row(r)]
            .iter()
            .any(|&c| c as usize / block == column / block)
    };
    let near = |r: usize| (r / together * together)..(r / together * together + together).min(rows);
    (0..rows).map(|r| near(r).any(owns)).collect()
}

fn check<T: Scalar>(context: &Context, row: &'static Row) {
    let problem = Problem::<T>::integers(odd_columns(row), 5, N);
    let block = row.block.1 as usize;
    let exact = |c: &[T], r: usize| (0..N).all(|j| c[r * N + j] == problem.exact(r, j));
    for name in formats(row) {
        let a = problem.sparse(&name);
        let values = nan_in_padding(&a);
        if row.walk == WalkKind::Filled {
            // This kernel multiplies every implicit zero, but no padding.
            let c = run(context, row, &a, &values, &problem.b(N));
            let wrong = (0..problem.m()).find(|&r| !exact(&c, r));
            assert_eq!(wrong, None, "{} on {name}: padding was multiplied", row.name);
            continue;
        }
        for poison in [f64::NAN, f64::INFINITY] {
            let poison = T::from_f64(poison);
            // NaN in rows of B without a nonzero in A.
            let mut b = problem.b(N);
            let unused = |k: usize| (k / block).is_multiple_of(2);
            for k in (0..problem.k()).filter(|k| unused(*k)) {
                b.values_mut()[k * N..][..N].fill(poison);
            }
            let c = run(context, row, &a, &values, &b);
            let wrong = (0..problem.m()).find(|&r| !exact(&c, r));
            assert_eq!(
                wrong, None,
                "{} on {name}: {poison} reached a row that owns no entry",
                row.name
            );
            // NaN in a row of B that has nonzeros in A.
            let used = problem.a.pattern().columns()[0] as usize;
            let mut b = problem.b(N);
            b.values_mut()[used * N..][..N].fill(poison);
            let c = run(context, row, &a, &values, &b);
            for (r, owns) in owners(&problem.a, row, used).into_iter().enumerate() {
                if !owns {
                    assert!(exact(&c, r), "{} on {name}: {poison} reached row {r}", row.name);
                } else if row.zeros == Zeros::Strict {
                    // This includes stored zeros: zero times infinity is NaN.
                    let reached = c[r * N..][..N].iter().all(|x| !x.to_f64().is_finite());
                    assert!(reached, "{} on {name}: {poison} did not reach row {r}", row.name);
                }
            }
        }
    }
}

fn every_row(context: &Context) {
    // Under a tool, one row in four: other tests run all of them.
    let rows = products_here().filter(|row| takes_any(row));
    for row in rows.step_by(if small() { 4 } else { 1 }) {
        by_type!(row.dtype, check(context, row));
    }
}

on_both! {
    nan_and_inf_stay_where_they_belong: cpu [|_| every_row(&Context::cpu())], gpu [every_row];
}
