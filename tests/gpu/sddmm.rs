//! Products of dense matrices at single entries (SDDMM): every row of the table that computes them against exact
//! integers, random values within their bound, what NaN and Inf reach, formats, raw addresses, graphs.

use super::numbers::Bound;
use crate::support::{Rng, gpu, gpu_alone, spread};
use einsparse::driver::Graph;
use einsparse::formats::{AnySparse, Csr, Dense, bf16, f16};
use einsparse::registry::{Dtype, Row, Scalar, kernels};
use einsparse::{Context, Error, Operand, Options, RawSampled, SampledPlan, SparseTensor, Tensor};

/// Columns of S: more than the longest row.
const COLUMNS: usize = 700;
/// Rows of no entry, around one reduction, around two, and one with nearly everything.
const LENS: [usize; 16] = [0, 1, 2, 7, 8, 9, 0, 15, 16, 17, 23, 64, 65, 3, 690, 0];
const GAP: usize = 8;

fn rows() -> impl Iterator<Item = &'static Row> {
    kernels().iter().filter(|row| row.family == "sddmm")
}

macro_rules! by_dtype {
    ($row:expr, $check:ident($($argument:expr),*)) => {
        match $row.dtype {
            Dtype::F32 => $check::<f32>($($argument),*),
            Dtype::F64 => $check::<f64>($($argument),*),
            Dtype::F16 => $check::<f16>($($argument),*),
            Dtype::Bf16 => $check::<bf16>($($argument),*),
            other => panic!("{}: no case for {}", $row.name, other.name()),
        }
    };
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

    /// Row and column of every entry.
    fn places(&self) -> Vec<(usize, usize)> {
        let pattern = self.s.pattern();
        let row = |r: usize| {
            let own = pattern.row(r);
            own.map(move |p| (r, pattern.columns()[p] as usize))
        };
        (0..pattern.rows()).flat_map(row).collect()
    }

    /// Sum of the products of an entry in f64, and of their magnitudes.
    fn sum(&self, (row, column): (usize, usize)) -> (f64, f64) {
        let k = self.x.shape()[1];
        let own = |d: &Dense<T>, r: usize, i: usize| d.values()[r * k + i].to_f64();
        let terms = (0..k).map(|i| own(&self.x, row, i) * own(&self.y, column, i));
        terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()))
    }
}

/// X and Y with NaN between their rows, as far apart as vectors allow.
fn strided<T: Scalar>(context: &Context, dense: &Dense<T>, any: bool) -> Tensor<T> {
    let width = dense.shape()[1];
    let leading = if any {
        width + 3
    } else {
        width.next_multiple_of(GAP) + GAP
    };
    let gap = T::from_f64(f64::NAN);
    context.upload_strided(dense, leading, gap).unwrap()
}

fn forced(row: &Row) -> Options {
    Options {
        variant: Some(row.name.into()),
        ..Options::default()
    }
}

fn run<T: Scalar>(
    context: &Context,
    plan: &SampledPlan<T>,
    operands: &[(&str, Operand<'_, T>)],
    s: &mut SparseTensor<T>,
) {
    let stream = context.stream().unwrap();
    plan.run(operands, s, &stream).unwrap();
    stream.synchronize().unwrap();
}

/// Exact values of four expressions over one case.
fn check<T: Scalar>(context: &Context, case: &Case<T>, format: &str, row: Option<&Row>) {
    let any = row.is_none_or(|r| r.vector == 1);
    let (x, y) = (
        strided(context, &case.x, any),
        strided(context, &case.y, any),
    );
    let stored = AnySparse::from(case.s.clone());
    let stored = stored.convert(format.parse().unwrap()).unwrap();
    let mask = context.upload(stored.clone()).unwrap();
    let options = row.map(forced).unwrap_or_default();
    let places = case.places();
    for (text, accumulate, masked, alpha) in [
        ("S[m,n] = X[m,k] * Y[n,k]", false, false, 1.0),
        ("S[m,n] += X[m,k] * Y[n,k]", true, false, 1.0),
        ("S[m,n] = 0.5 * P[m,n] * X[m,k] * Y[n,k]", false, true, 0.5),
        ("S[m,n] += -2 * P[m,n] * Y[n,k] * X[m,k]", true, true, -2.0),
    ] {
        let mut s = context.upload(stored.clone()).unwrap();
        let mut operands: Vec<(&str, Operand<'_, T>)> =
            vec![("X", (&x).into()), ("Y", (&y).into())];
        if masked {
            operands.push(("P", (&mask).into()));
        }
        let plan = context
            .plan_sampled_with(text, &operands, &s, &options)
            .unwrap();
        if let (Some(row), Some(_)) = (row, context.device()) {
            assert_eq!(plan.variant(), row.name);
        }
        run(context, &plan, &operands, &mut s);
        let found = s.to_host().unwrap().to_csr().unwrap();
        for ((place, &old), &found) in places.iter().zip(case.s.values()).zip(found.values()) {
            let mut wanted = alpha * case.sum(*place).0;
            if masked {
                wanted *= old.to_f64();
            }
            if accumulate {
                wanted += old.to_f64();
            }
            let k = case.x.shape()[1];
            let what = (text, place, k, format, plan.variant());
            assert_eq!(found, T::from_f64(wanted), "{what:?}");
        }
    }
}

/// Around one and two steps along k, in whole vectors.
fn lengths(row: &Row) -> Vec<usize> {
    let (step, v) = (row.columns as usize, row.vector as usize);
    vec![0, v, step - v, step, step + v, 2 * step + 3 * v]
}

fn exact<T: Scalar>(context: &Context, row: &Row) {
    for k in lengths(row) {
        check(context, &Case::<T>::integers(&LENS, k), "csr", Some(row));
    }
    // Warps that end in the middle of the list, and patterns of nothing.
    for lens in [&[1usize][..], &[5; 33], &[0; 4], &[]] {
        let k = row.columns as usize;
        check(context, &Case::<T>::integers(lens, k), "csr", Some(row));
    }
}

#[test]
fn every_row_samples_entries_exactly_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for row in rows() {
        by_dtype!(row, exact(&gpu, row));
    }
}

#[test]
fn formats_in_row_order_are_sampled() {
    let gpu = gpu();
    let cpu = Context::cpu();
    for context in gpu.iter().map(|g| &**g).chain([&cpu]) {
        for format in ["csr", "coo", "ell", "groupcoo:3", "groupcoo:8"] {
            for k in [5, 64, 72] {
                check(
                    context,
                    &Case::<f32>::integers(&LENS[..14], k),
                    format,
                    None,
                );
                check(
                    context,
                    &Case::<bf16>::integers(&LENS[..14], k),
                    format,
                    None,
                );
            }
        }
    }
}

fn random<T: Scalar>(context: &Context, row: &Row) {
    let k = 2 * row.columns as usize + row.vector as usize;
    let mut rng = Rng(9);
    let case = Case::<T>::new(&LENS, k, || rng.unit());
    let (x, y) = (
        strided(context, &case.x, false),
        strided(context, &case.y, false),
    );
    let operands = [("X", (&x).into()), ("Y", (&y).into())];
    let mut s = context.upload(case.s.clone()).unwrap();
    let plan = context
        .plan_sampled_with("S[m,n] = X[m,k] * Y[n,k]", &operands, &s, &forced(row))
        .unwrap();
    let bound = Bound::of(row.dtype);
    let mut first = None;
    for _ in 0..3 {
        run(context, &plan, &operands, &mut s);
        let found = s.to_host().unwrap();
        for (place, found) in case.places().into_iter().zip(found.values()) {
            let (sum, magnitude) = case.sum(place);
            let error = (found.to_f64() - sum).abs();
            let most = bound.at(sum, magnitude, k);
            assert!(
                error <= most,
                "{}: {error} over {most} at {place:?}",
                row.name
            );
        }
        let bits: Vec<u64> = found
            .values()
            .iter()
            .map(|v| v.to_f64().to_bits())
            .collect();
        assert_eq!(
            first.get_or_insert_with(|| bits.clone()),
            &bits,
            "{}",
            row.name
        );
    }
}

#[test]
fn sampled_entries_are_within_their_bound_and_repeat_bit_by_bit() {
    let Some(gpu) = gpu() else { return };
    for row in rows() {
        by_dtype!(row, random(&gpu, row));
    }
}

/// A NaN in a row of Y reaches the entries of that column, an Inf in X those of that row, and nothing else.
fn planted<T: Scalar>(context: &Context, row: &Row) {
    let k = row.columns as usize + row.vector as usize;
    let mut case = Case::<T>::integers(&LENS, k);
    let exact: Vec<f64> = case.places().iter().map(|&p| case.sum(p).0).collect();
    let (bad_row, bad_column) = (9, case.places()[40].1);
    case.y.values_mut()[bad_column * k + k - 1] = T::from_f64(f64::NAN);
    case.x.values_mut()[bad_row * k] = T::from_f64(f64::INFINITY);
    let (x, y) = (
        strided(context, &case.x, false),
        strided(context, &case.y, false),
    );
    let operands = [("X", (&x).into()), ("Y", (&y).into())];
    let mut s = context.upload(case.s.clone()).unwrap();
    let plan = context
        .plan_sampled_with("S[m,n] = X[m,k] * Y[n,k]", &operands, &s, &forced(row))
        .unwrap();
    run(context, &plan, &operands, &mut s);
    let found = s.to_host().unwrap();
    for ((place, exact), found) in case.places().into_iter().zip(exact).zip(found.values()) {
        let reached = place.0 == bad_row || place.1 == bad_column;
        let found = found.to_f64();
        let right = if reached {
            !found.is_finite()
        } else {
            found == T::from_f64(exact).to_f64()
        };
        assert!(right, "{}: {found} at {place:?}", row.name);
    }
}

#[test]
fn nan_and_inf_reach_only_entries_of_their_row_and_column() {
    let Some(gpu) = gpu() else { return };
    for row in rows() {
        by_dtype!(row, planted(&gpu, row));
    }
}

#[test]
fn raw_addresses_write_the_values_and_nothing_around_them() {
    let Some(gpu) = gpu() else { return };
    let case = Case::<f32>::integers(&LENS, 40);
    let (x, y) = (
        gpu.upload_dense(&case.x).unwrap(),
        gpu.upload_dense(&case.y).unwrap(),
    );
    let s = gpu.upload(case.s.clone()).unwrap();
    let operands = [("X", (&x).into()), ("Y", (&y).into())];
    let plan = gpu
        .plan_sampled("S[m,n] = X[m,k] * Y[n,k]", &operands, &s)
        .unwrap();
    let entries = case.s.values().len();
    let guarded = Dense::new([entries + 2 * GAP], vec![77.0f32; entries + 2 * GAP]).unwrap();
    let out = gpu.upload_dense(&guarded).unwrap();
    let mut raw = RawSampled {
        columns: s.columns_address().unwrap(),
        x: x.address().unwrap(),
        ldx: 40,
        y: y.address().unwrap(),
        ldy: 40,
        mask: 0,
        values: out.address().unwrap() + 4 * GAP as u64,
        alpha: 3.0,
    };
    let stream = gpu.stream().unwrap();
    // SAFETY: the addresses are those of operands of the planned shapes, all alive until the stream is waited for.
    unsafe { plan.run_raw(&raw, stream.raw()) }.unwrap();
    stream.synchronize().unwrap();
    let found = out.to_dense().unwrap();
    let (inside, around) = (GAP..GAP + entries, |i: usize| i < GAP || i >= GAP + entries);
    assert!(
        (0..found.values().len())
            .filter(|&i| around(i))
            .all(|i| found.values()[i] == 77.0)
    );
    for (place, &found) in case.places().into_iter().zip(&found.values()[inside]) {
        assert_eq!(f64::from(found), 3.0 * case.sum(place).0);
    }
    raw.ldx = 36;
    // SAFETY: refused before anything is launched.
    let narrow = unsafe { plan.run_raw(&raw, stream.raw()) }.unwrap_err();
    assert!(
        narrow.to_string().contains("below its 40 columns"),
        "{narrow}"
    );
    raw.mask = raw.values;
    // SAFETY: as above.
    let mask = unsafe { plan.run_raw(&raw, stream.raw()) }.unwrap_err();
    assert!(mask.to_string().contains("mask"), "{mask}");
}

#[test]
fn a_captured_run_is_replayed() {
    let Some(gpu) = gpu_alone() else { return };
    let case = Case::<f16>::integers(&LENS, 64);
    let (x, y) = (
        gpu.upload_dense(&case.x).unwrap(),
        gpu.upload_dense(&case.y).unwrap(),
    );
    let mut s = gpu.upload(case.s.clone()).unwrap();
    let operands = [("X", (&x).into()), ("Y", (&y).into())];
    let plan = gpu
        .plan_sampled("S[m,n] += X[m,k] * Y[n,k]", &operands, &s)
        .unwrap();
    let stream = gpu.stream().unwrap();
    let graph = Graph::capture(stream.raw(), |_| plan.run(&operands, &mut s, &stream)).unwrap();
    let mut graph = graph.instantiate().unwrap();
    for _ in 0..2 {
        // SAFETY: operands, output and plan live past the wait below.
        unsafe { graph.launch(stream.raw()) }.unwrap();
    }
    stream.synchronize().unwrap();
    let found = s.to_host().unwrap();
    let old = case.s.values();
    for ((place, found), old) in case.places().into_iter().zip(found.values()).zip(old) {
        let wanted = 2.0 * case.sum(place).0 + old.to_f64();
        assert_eq!(found.to_f64(), wanted, "{place:?}");
    }
}

#[test]
fn entries_refuse_orders_and_variants_that_are_not_there() {
    let gpu = gpu();
    let cpu = Context::cpu();
    let case = Case::<f32>::integers(&LENS, 8);
    let context = gpu.as_deref().unwrap_or(&cpu);
    let x = context.upload_dense(&case.x).unwrap();
    let y = context
        .upload_dense(&Dense::<f32>::zeros([8, COLUMNS]).unwrap())
        .unwrap();
    let s = context.upload(case.s.clone()).unwrap();
    let operands = [("X", (&x).into()), ("Y", (&y).into())];
    match context.plan_sampled("S[m,n] = X[m,k] * Y[k,n]", &operands, &s) {
        Ok(plan) => {
            assert_eq!(plan.variant(), "cpu");
            assert!(plan.choice().candidates.is_empty());
            let reads = |r: &einsparse::Refusal| r.reason.contains("reads [m,k] and [n,k]");
            assert!(plan.choice().refused.iter().any(reads));
        }
        Err(Error::NoKernel { tried, .. }) => {
            assert!(tried.iter().any(|r| r.reason == "reads [m,k] and [n,k]"));
        }
        Err(other) => panic!("{other}"),
    }
    let options = Options {
        variant: Some("sddmm_nowhere".into()),
        ..Options::default()
    };
    let operands = [("X", (&x).into()), ("Y", (&x).into())];
    let small = context
        .upload(Csr::new(spread(&[1; 16], 16), vec![0.0f32; 16]).unwrap())
        .unwrap();
    let text = "S[m,n] = X[m,k] * Y[n,k]";
    let unknown = context
        .plan_sampled_with(text, &operands, &small, &options)
        .unwrap_err();
    assert!(
        unknown.to_string().contains("no kernel of this name"),
        "{unknown}"
    );
}
