//! Products of dense matrices at unstructured nonzeros (SDDMM). Every row of the table that computes them is compared
//! with exact integers. Further tests: error bounds on random values, propagation of NaN and Inf, formats, raw
//! addresses, graphs.

mod runs;

use crate::support::bounds::Bound;
use crate::support::dense::transposed;
use crate::support::einsum::{Given, samples_agree};
use crate::support::rows::{by_type, force, kernels_here};
use crate::support::runs::finish;
use crate::support::{Rng, gpu, spread};
use einsparse::formats::{AnySparse, Csr, Dense, bf16};
use einsparse::registry::{Operation, Row, Scalar};
use einsparse::{Context, Tensor};

/// Columns of S: more than the longest row.
const COLUMNS: usize = 700;
/// Lengths of rows: empty, around one reduction, around two, and one nearly full.
const LENS: [usize; 16] = [0, 1, 2, 7, 8, 9, 0, 15, 16, 17, 23, 64, 65, 3, 690, 0];
const GAP: usize = 8;

fn rows() -> impl Iterator<Item = &'static Row> {
    let modules = ["sddmm", "sddmm_staged", "sddmm_tiles"];
    let sampled = kernels_here().filter(|row| row.operation == Operation::Sampled);
    sampled.filter(move |row| modules.contains(&row.module))
}

/// Whether a row reads X as `[k, m]` and Y as `[k, n]`.
fn by_columns(row: &Row) -> bool {
    row.order & einsparse::kernels::abi::A_COLUMNS != 0
}

/// S with values, X `[m, k]` and Y `[n, k]`.
struct Case<T: Scalar> {
    s: Csr<T>,
    x: Dense<T>,
    y: Dense<T>,
}

impl<T: Scalar> Case<T> {
    fn new(lens: &[usize], k: usize, mut value: impl FnMut() -> f64) -> Self {
        let pattern = spread(lens, COLUMNS);
        let (m, entries) = (lens.len(), pattern.columns().len());
        let mut some = |n: usize| -> Vec<T> { (0..n).map(|_| T::from_f64(value())).collect() };
        Case {
            s: Csr::new(pattern, some(entries)).unwrap(),
            x: Dense::new([m, k], some(m * k)).unwrap(),
            y: Dense::new([COLUMNS, k], some(COLUMNS * k)).unwrap(),
        }
    }

    fn integers(lens: &[usize], k: usize) -> Self {
        let mut rng = Rng(k as u64 + 1);
        Self::new(lens, k, || rng.integer())
    }

    /// Returns row and column of every entry.
    fn places(&self) -> Vec<(usize, usize)> {
        let pattern = self.s.pattern();
        let row = |r: usize| {
            let own = pattern.row(r);
            own.map(move |p| (r, pattern.columns()[p] as usize))
        };
        (0..pattern.rows()).flat_map(row).collect()
    }

    /// Returns the sum of the products of an entry in f64, and of their magnitudes.
    fn sum(&self, (row, column): (usize, usize)) -> (f64, f64) {
        let k = self.x.shape()[1];
        let own = |d: &Dense<T>, r: usize, i: usize| d.values()[r * k + i].to_f64();
        let terms = (0..k).map(|i| own(&self.x, row, i) * own(&self.y, column, i));
        terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()))
    }
}

/// Uploads X and Y in the order that a row requires, with NaN between their rows.
fn factors<T: Scalar>(context: &Context, case: &Case<T>, row: Option<&Row>) -> [Tensor<T>; 2] {
    let any = row.is_none_or(|r| r.vector == 1);
    [&case.x, &case.y].map(|dense| match row {
        Some(row) if by_columns(row) => strided(context, &transposed(dense), any),
        _ => strided(context, dense, any),
    })
}

/// Returns an expression with the axes in the order that a row requires.
fn ordered(text: &str, row: Option<&Row>) -> String {
    if row.is_some_and(by_columns) {
        text.replace("[m,k]", "[k,m]").replace("[n,k]", "[k,n]")
    } else {
        text.into()
    }
}

/// Uploads with NaN between the rows. The row stride allows vectors unless `any` is set.
fn strided<T: Scalar>(context: &Context, dense: &Dense<T>, any: bool) -> Tensor<T> {
    let leading = leading(dense.shape()[1], any);
    context.upload_strided(dense, leading, T::from_f64(f64::NAN)).unwrap()
}

fn leading(width: usize, any: bool) -> usize {
    if any { width + 3 } else { width.next_multiple_of(GAP) + GAP }
}

/// Runs one plan of a row on a case several times and returns the results.
fn runs_of<T: Scalar>(
    context: &Context,
    case: &Case<T>,
    row: &Row,
    times: usize,
) -> Vec<AnySparse<T>> {
    let [x, y] = factors(context, case, Some(row));
    let operands = [("X", (&x).into()), ("Y", (&y).into())];
    let mut s = context.upload(&case.s).unwrap();
    let text = ordered("S[m,n] = X[m,k] * Y[n,k]", Some(row));
    let plan = context.plan(&text).operands(&operands).sparse_output(&s);
    let plan = plan.options(&force(row)).build().unwrap();
    let again = || {
        finish(context, |stream| plan.run(&operands, &mut s, stream));
        s.to_host().unwrap()
    };
    std::iter::repeat_with(again).take(times).collect()
}

/// Checks the values of four expressions over one case exactly.
fn check<T: Scalar>(context: &Context, case: &Case<T>, format: &str, row: Option<&Row>) {
    let any = row.is_none_or(|r| r.vector == 1);
    let given = [("X", &case.x), ("Y", &case.y)].map(|(name, dense)| {
        let dense = if row.is_some_and(by_columns) { transposed(dense) } else { dense.clone() };
        let leading = leading(dense.shape()[1], any);
        (name, Given::Apart(dense, leading))
    });
    let options = row.map(force).unwrap_or_default();
    for text in [
        "S[m,n] = X[m,k] * Y[n,k]",
        "S[m,n] += X[m,k] * Y[n,k]",
        "S[m,n] = 0.5 * P[m,n] * X[m,k] * Y[n,k]",
        "S[m,n] += -2 * P[m,n] * Y[n,k] * X[m,k]",
    ] {
        let (line, of) = (ordered(text, row), (&case.s, &case.s, format));
        let plan = samples_agree(context, &line, &given, of, (&options, &case.x.shape()));
        if let (Some(row), Some(_)) = (row, context.device()) {
            assert_eq!(plan.variant(), row.name);
        }
    }
}

/// Returns extents around one and two steps along k, in whole vectors.
fn lengths(row: &Row) -> Vec<usize> {
    let (step, v) = (row.columns as usize, row.vector as usize);
    if row.module == "sddmm_staged" {
        // These kernels have at most one step.
        return vec![step / 4 + v, step / 2, step - v, step];
    }
    vec![0, v, step - v, step, step + v, 2 * step + 3 * v]
}

fn exact<T: Scalar>(context: &Context, row: &Row) {
    for k in lengths(row) {
        check(context, &Case::<T>::integers(&LENS, k), "csr", Some(row));
    }
    // Warps that end in the middle of the list, and empty patterns.
    for lens in [&[1usize][..], &[5; 33], &[0; 4], &[]] {
        let k = row.columns as usize;
        check(context, &Case::<T>::integers(lens, k), "csr", Some(row));
    }
}

/// Tiles, half tiles, warps' rows and chunks of columns without entries; full rows; odd lengths; several tiles per
/// thread block.
fn tiles<T: Scalar>(context: &Context, row: &Row) {
    let lens: Vec<usize> = (0..410)
        .map(|r| match r {
            128..192 | 256..384 => 0,
            0..16 => r * 44,
            _ if r / 16 % 5 == 4 => 0,
            400.. => COLUMNS,
            _ => r * 7 % 23,
        })
        .collect();
    for k in [0, 5, 64, 200] {
        check(context, &Case::<T>::integers(&lens, k), "csr", Some(row));
    }
    let many: Vec<usize> = (0..128 * 150).map(|r| r * 5 % 13).collect();
    check(context, &Case::<T>::integers(&many, 72), "groupcoo:3", Some(row));
}

#[test]
fn dense_tiles_are_picked_exactly_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for row in rows().filter(|row| row.module == "sddmm_tiles") {
        by_type!(row.dtype, tiles(&gpu, row));
    }
}

#[test]
fn every_row_samples_entries_exactly_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for row in rows() {
        by_type!(row.dtype, exact(&gpu, row));
    }
}

#[test]
fn formats_in_row_order_are_sampled() {
    let gpu = gpu();
    let cpu = Context::unchecked_cpu();
    for context in gpu.iter().map(|g| &**g).chain([&cpu]) {
        for format in ["csr", "coo", "ell", "groupcoo:3", "groupcoo:8"] {
            for k in [5, 64, 72] {
                check(context, &Case::<f32>::integers(&LENS[..14], k), format, None);
                check(context, &Case::<bf16>::integers(&LENS[..14], k), format, None);
            }
        }
    }
}

fn random<T: Scalar>(context: &Context, row: &Row) {
    let k = *lengths(row).last().unwrap();
    let mut rng = Rng(9);
    let case = Case::<T>::new(&LENS, k, || rng.unit());
    let bound = Bound::of(row.dtype);
    let mut first = None;
    for found in runs_of(context, &case, row, 3) {
        for (place, found) in case.places().into_iter().zip(found.values()) {
            let (sum, magnitude) = case.sum(place);
            let error = (found.to_f64() - sum).abs();
            let most = bound.at(sum, magnitude, k);
            assert!(error <= most, "{}: {error} over {most} at {place:?}", row.name);
        }
        let bits = found.values().iter().map(|v| v.to_f64().to_bits());
        let bits: Vec<u64> = bits.collect();
        assert_eq!(first.get_or_insert_with(|| bits.clone()), &bits, "{}", row.name);
    }
}

#[test]
fn sampled_entries_are_within_their_bound_and_repeat_bit_by_bit() {
    let Some(gpu) = gpu() else { return };
    for row in rows() {
        by_type!(row.dtype, random(&gpu, row));
    }
}

/// A NaN in a row of Y reaches the entries of that column, an Inf in X those of that row, and nothing else.
fn planted<T: Scalar>(context: &Context, row: &Row) {
    let k = lengths(row)[1..].iter().rev().nth(1).copied().unwrap();
    let mut case = Case::<T>::integers(&LENS, k);
    let exact: Vec<f64> = case.places().iter().map(|&p| case.sum(p).0).collect();
    let (bad_row, bad_column) = (9, case.places()[40].1);
    case.y.values_mut()[bad_column * k + k - 1] = T::from_f64(f64::NAN);
    case.x.values_mut()[bad_row * k] = T::from_f64(f64::INFINITY);
    let [found] = &runs_of(context, &case, row, 1)[..] else {
        unreachable!("one run");
    };
    for ((place, exact), found) in case.places().into_iter().zip(exact).zip(found.values()) {
        let reached = place.0 == bad_row || place.1 == bad_column;
        let found = found.to_f64();
        let right = if reached { !found.is_finite() } else { found == T::from_f64(exact).to_f64() };
        assert!(right, "{}: {found} at {place:?}", row.name);
    }
}

#[test]
fn nan_and_inf_reach_only_entries_of_their_row_and_column() {
    let Some(gpu) = gpu() else { return };
    for row in rows() {
        by_type!(row.dtype, planted(&gpu, row));
    }
}
