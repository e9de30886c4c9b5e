//! B in shared memory: cases that the suite of all rows is too small for. Rings that wrap around, windows that rows run
//! ahead of, slices with and without rows, a partial last thread block.

use crate::support::dense::{nan, strided};
use crate::support::rows::{named, products_here};
use crate::support::runs::{plan_and_run, plan_of};
use crate::support::{GUARD, Problem, assert_matrix, gpu, small};
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, Format, Pattern, bf16, f16, generate};
use einsparse::kernels::families::{RING_ROWS, SLICE};
use einsparse::registry::{Row, Scalar, WalkKind};
use einsparse::{Context, SparseTensor};

/// Returns the rows for an element type that support a matrix of `cols` columns.
fn rows<T: Scalar>(cols: usize) -> impl Iterator<Item = &'static Row> {
    let own = move |row: &&Row| {
        let walks = row.walk == WalkKind::SlicedEll && row.dtype == T::DTYPE;
        walks && cols <= row.depth as usize
    };
    products_here().filter(own)
}

/// Returns a pattern from the columns of each row.
fn pattern(cols: usize, rows: usize, columns: impl Fn(usize) -> Vec<u32>) -> CsrPattern {
    let mut offsets = vec![0];
    let mut all = Vec::new();
    for row in 0..rows {
        all.extend(columns(row));
        offsets.push(all.len() as u32);
    }
    CsrPattern::new(rows, cols, offsets, all).unwrap()
}

const TEXT: &str = "C[m,n] = A[m,k] * B[k,n]";

fn check(context: &Context, what: &str, pattern: CsrPattern, n: usize) {
    check_of::<f32>(context, what, pattern, n);
}

fn check_of<T: Scalar>(context: &Context, what: &str, pattern: CsrPattern, n: usize) {
    let problem = Problem::<T>::integers(pattern, 3, n);
    let a: SparseTensor<T> = context.upload(problem.sparse("sell")).unwrap();
    let whole = n.next_multiple_of(8) + 8;
    let b = strided(context, &problem.b(n), whole, T::from_f64(f64::NAN));
    let operands = [("A", (&a).into()), ("B", (&b).into())];
    let stream = context.stream().unwrap();
    for row in rows::<T>(problem.k()) {
        let plan = plan_of::<T>(context, TEXT, &operands, &named(row.name));
        let start = nan(&[problem.m(), n]);
        // Contiguous rows, which vector stores may write, and rows that do not allow vectors.
        for leading in [whole, n + 1] {
            let mut c = strided(context, &start, leading, T::from_f64(GUARD));
            // Runs twice: the second run must not need barriers of the first.
            for _ in 0..2 {
                plan.run(&operands, &mut c, &stream).unwrap();
            }
            stream.synchronize().unwrap();
            let found = c.to_storage().unwrap();
            assert_matrix(&(row.name, what), &found, (problem.m(), n, leading), |r, c| {
                problem.exact(r, c)
            });
        }
    }
}

/// A slice so long that thread blocks of a cluster share it: alone, among short ones, and next to another one.
#[test]
fn long_slices_take_several_thread_blocks() {
    let Some(gpu) = gpu() else { return };
    let k = 1000;
    let full = || (0..k as u32).collect::<Vec<u32>>();
    let some = |row: usize| {
        let step = 3 + row % 7;
        (0..(row * 13 % 90)).map(|i| (i * step) as u32).collect()
    };
    let one = pattern(k, 20, |row| if row < 3 { full() } else { some(row) });
    let among = pattern(k, 700, |row| if row == 300 { full() } else { some(row) });
    let two = pattern(k, 64, |row| if row % 3 == 0 { full() } else { some(row) });
    let many = generate::uniform(6 * SLICE, k, 0.5, 3).unwrap();
    let patterns = [("one", one), ("among", among), ("two", two), ("many", many)];
    for (what, pattern) in patterns.into_iter().take(if small() { 1 } else { 4 }) {
        for n in [4, 31, 64, 200].into_iter().take(if small() { 2 } else { 4 }) {
            check(&gpu, &format!("{what}, {n} columns"), pattern.clone(), n);
        }
    }
}

#[test]
fn rings_go_round() {
    let Some(gpu) = gpu() else { return };
    let depth = if small() { 2 } else { 3 };
    let k = depth * RING_ROWS as usize + 100;
    for (rows, density) in [(300, 0.05), (33, 0.002), (520, 0.01)] {
        let pattern = generate::uniform(rows, k, density, 5).unwrap();
        check(&gpu, &format!("{rows} x {k}, density {density}"), pattern, 40);
    }
}

/// Half of the rows of each slice end where the others begin, so lanes must wait.
#[test]
fn rows_that_run_ahead_wait() {
    let Some(gpu) = gpu() else { return };
    let k = 2 * RING_ROWS as usize + 70;
    let halves = pattern(k, 70, |row| {
        let from = if row % 2 == 0 { 0 } else { k / 2 };
        (0..40).map(|i| (from + i * 37) as u32).collect()
    });
    check(&gpu, "halves", halves, 33);
    let ends = pattern(k, 40, |row| match row % 3 {
        0 => vec![0, k as u32 - 1],
        1 => vec![k as u32 - 1],
        _ => Vec::new(),
    });
    check(&gpu, "both ends", ends, 64);
    let one = pattern(k, 5, |row| if row == 2 { (0..k as u32).collect() } else { vec![] });
    check(&gpu, "one row with everything", one, 8);
}

#[test]
fn slices_may_be_ragged() {
    let Some(gpu) = gpu() else { return };
    for rows in [1, SLICE - 1, SLICE, SLICE + 1, 8 * SLICE + 1, 16 * SLICE - 1] {
        for cols in [1, 63, 64, 65] {
            let lens = |row: usize| (0..(row % (cols + 1)) as u32).collect();
            check(&gpu, &format!("{rows} x {cols}"), pattern(cols, rows, lens), 31);
        }
    }
}

/// One to a few columns: slices that several warps share, more warps than chunks, empty rows between others.
#[test]
fn few_columns_of_16_bits() {
    let Some(gpu) = gpu() else { return };
    let uniform = |m, k, d| generate::uniform(m, k, d, 5).unwrap();
    let long = pattern(3000, 70, |row| {
        let step = 5 + row % 40;
        (0..if row % 3 == 0 { 0 } else { 60 }).map(|i| (i * step) as u32).collect()
    });
    let all = [
        ("one entry", pattern(9, 40, |row| if row == 7 { vec![3] } else { vec![] })),
        ("long slices", long),
        ("wide", uniform(500, 9000, 0.01)),
        ("many slices", uniform(20_000, 300, 0.1)),
    ];
    for (what, pattern) in all.into_iter().take(if small() { 2 } else { 4 }) {
        for n in [1, 3, 8, 17] {
            let what = format!("{what}, {n} columns");
            check_of::<f16>(&gpu, &what, pattern.clone(), n);
            check_of::<bf16>(&gpu, &what, pattern.clone(), n);
        }
    }
}

/// The device's converter makes the same arrays as the host's, bit for bit.
#[test]
fn slices_are_made_on_the_device() {
    let Some(gpu) = gpu() else { return };
    fn same<T: Scalar>(gpu: &Context, what: &str, pattern: CsrPattern) {
        let values = (1..=pattern.nnz()).map(|i| T::from_f64((i % 100) as f64));
        let csr = Csr::new(pattern.clone(), values.collect()).unwrap();
        let wanted = AnySparse::from(csr.clone()).convert(Format::SlicedEll).unwrap();
        let made = gpu.upload(csr).unwrap().to_sliced_ell().unwrap();
        assert!(made.to_host().unwrap() == wanted, "{what}, {}", T::DTYPE.name());
    }
    let uniform = |m, k, d| generate::uniform(m, k, d, 11).unwrap();
    let cases = [
        ("sorted in two windows", uniform(4500, 100, 0.1)),
        ("wide", uniform(100, 9000, 0.01)),
        ("no rows", uniform(0, 10, 0.5)),
        ("no entries", pattern(9, 40, |_| Vec::new())),
        ("far ahead", pattern(8000, 40, |row| vec![row as u32, 4000 + 90 * row as u32])),
    ];
    for (what, pattern) in cases {
        same::<f32>(&gpu, what, pattern.clone());
        same::<f64>(&gpu, what, pattern.clone());
        same::<f16>(&gpu, what, pattern);
    }
}

/// Only entries are multiplied. Values of padding are NaN, and rows of B without entries in A are Inf.
#[test]
fn padding_and_foreign_rows_stay_out() {
    let Some(gpu) = gpu() else { return };
    // Row r has columns 1, 3, .., 2 r - 1, so rows of every length below 40 are adjacent.
    let odd = pattern(200, 40, |row| (0..row as u32).map(|i| 2 * i + 1).collect());
    let problem = Problem::<f32>::integers(odd, 5, 32);
    let a = problem.sparse("sell");
    let AnySparse::SlicedEll(sliced) = &a else { panic!("{}", a.format()) };
    let p = sliced.pattern();
    let mut values = a.values().to_vec();
    let padding = (0..values.len()).filter(|&slot| p.column(slot) == u32::MAX);
    padding.for_each(|slot| values[slot] = f32::NAN);
    let mut tensor = gpu.upload(&a).unwrap();
    tensor.set_values(&values).unwrap();
    let mut b = problem.b(32);
    for k in (0..200).filter(|k| k % 2 == 0 || *k > 78) {
        b.values_mut()[k * 32..][..32].fill(f32::INFINITY);
    }
    let b = gpu.upload_dense(&b).unwrap();
    let operands = [("A", (&tensor).into()), ("B", (&b).into())];
    for row in rows::<f32>(problem.k()) {
        let (_, c) = plan_and_run(&gpu, TEXT, &operands, &named(row.name));
        let found = c.to_storage().unwrap();
        assert_matrix(&row.name, &found, (40, 32, 32), |r, c| problem.exact(r, c));
    }
}

/// A product of few columns whose B is written by the preceding launch. All of B must be read after that launch has
/// ended.
#[test]
fn few_columns_that_the_launch_ahead_writes() {
    let Some(gpu) = gpu() else { return };
    fn follows<T: Scalar>(gpu: &Context, n: usize) {
        let m = 2048;
        let next = pattern(m, m, |row| vec![(row as u32 + 1) % m as u32]);
        let ones = Csr::new(next, vec![T::ONE; m]).unwrap();
        let a = AnySparse::from(ones).convert(Format::SlicedEll).unwrap();
        let a = gpu.upload(a).unwrap();
        let start =
            Dense::from_fn([m, n], |i| T::from_f64((i[0] * 3 + i[1]) as f64 % 97.0)).unwrap();
        let own =
            |row: &&Row| row.module == "sell" && row.dtype == T::DTYPE && row.columns >= n as u32;
        let row = products_here().find(own).unwrap();
        let mut states = [gpu.upload_dense(&start).unwrap(), gpu.zeros::<T>(&[m, n]).unwrap()];
        let operands = [("A", (&a).into()), ("B", (&states[0]).into())];
        let plan = plan_of::<T>(gpu, TEXT, &operands, &named(row.name));
        let stream = gpu.stream().unwrap();
        for _ in 0..40 {
            let [from, to] = &mut states;
            let operands = [("A", (&a).into()), ("B", (&*from).into())];
            plan.run(&operands, to, &stream).unwrap();
            states.swap(0, 1);
        }
        stream.synchronize().unwrap();
        let found = states[0].to_dense().unwrap();
        for (at, found) in found.values().iter().enumerate() {
            let wanted = start.values()[(at / n + 40) % m * n + at % n];
            assert_eq!(found.to_f64(), wanted.to_f64(), "{} {at}", row.name);
        }
    }
    for n in [1, 8] {
        follows::<f16>(&gpu, n);
        follows::<bf16>(&gpu, n);
    }
}
