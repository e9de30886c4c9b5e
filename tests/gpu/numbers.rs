//! Random values: every row of the table is within the error bound of its element type, and the bound detects a dropped
//! nonzero.

use crate::support::bounds::Bound;
use crate::support::rows::{by_type, force, formats, product_dtypes, products_here, takes_any};
use crate::support::runs::plan_and_run;
use crate::support::{Rng, gpu, on_both, product, small, spread, stored};
use einsparse::formats::{AnySparse, Csr, Dense, Element};
use einsparse::registry::{Dtype, Row, Scalar, WalkKind};
use einsparse::{Context, Options};

/// A times B, with the exact result and the scale of its error.
struct Random<T> {
    a: Csr<T>,
    b: Dense<T>,
    truth: Vec<f64>,
    magnitude: Vec<f64>,
}

impl<T: Scalar> Random<T> {
    fn new(lens: &[usize], cols: usize, n: usize, seed: u64) -> Self {
        let pattern = spread(lens, cols);
        let mut rng = Rng(seed);
        let a = Csr::new(pattern.clone(), rng.units(pattern.columns().len())).unwrap();
        let b = Dense::new([cols, n], rng.units(cols * n)).unwrap();
        let truth = product(&a, b.values(), n, |x| x);
        let magnitude = product(&a, b.values(), n, f64::abs);
        Random { a, b, truth, magnitude }
    }

    /// Returns the first element outside of the bound.
    fn fault(&self, bound: Bound, c: &[T]) -> Option<String> {
        let n = self.b.shape()[1];
        assert_eq!(c.len(), self.truth.len());
        c.iter().enumerate().find_map(|(i, found)| {
            let terms = self.a.pattern().row(i / n).len();
            let error = (found.to_f64() - self.truth[i]).abs();
            let most = bound.at(self.truth[i], self.magnitude[i], terms);
            // `error > most` would accept NaN, which is a fault too.
            let within = error <= most;
            let (row, column) = (i / n, i % n);
            (!within).then(|| {
                format!(
                    "C[{row},{column}] = {found}, truth {}, error {error:e} > {most:e}",
                    self.truth[i]
                )
            })
        })
    }

    fn run(&self, context: &Context, a: AnySparse<T>, options: &Options) -> Vec<T> {
        let a = context.upload(a).unwrap();
        let b = context.upload_dense(&self.b).unwrap();
        let operands = [("A", (&a).into()), ("B", (&b).into())];
        let (_, c) = plan_and_run(context, "C[m,n] = A[m,k] * B[k,n]", &operands, options);
        c.to_dense().unwrap().into_values()
    }
}

/// Row lengths for a walk: short rows, then rows that are split.
fn lens(row: &Row) -> (Vec<usize>, usize) {
    match row.walk {
        WalkKind::Block => {
            (vec![row.block.0 as usize * 3; row.block.0 as usize], row.block.0 as usize * 3)
        }
        _ if small() || row.depth < 4000 => ((0..60).chain([700]).collect(), 700),
        _ => ((0..100).chain([4000, 3001]).collect(), 4000),
    }
}

fn rows_within_the_bound<T: Scalar>(context: &Context, dtype: Dtype) {
    for row in products_here().filter(|row| row.dtype == dtype && takes_any(row)) {
        let (lens, cols) = lens(row);
        let random = Random::<T>::new(&lens, cols, 64, 3);
        for format in formats(row) {
            let a = stored(random.a.clone(), &format);
            let c = random.run(context, a, &force(row));
            if let Some(fault) = random.fault(Bound::of(dtype), &c) {
                panic!("{} on {format}: {fault}", row.name);
            }
        }
    }
}

fn every_dtype(context: &Context) {
    for dtype in product_dtypes() {
        by_type!(dtype, rows_within_the_bound(context, dtype));
    }
}

on_both! {
    random_values_stay_within_the_bound: cpu [|_| every_dtype(&Context::cpu())], gpu [every_dtype];
}

/// The bound detects an executor that drops one nonzero of a row, in every element type.
#[test]
fn the_bound_catches_a_dropped_entry() {
    fn drops<T: Scalar>(dtype: Dtype) {
        let lens = [1, 7, 64, 200];
        let random = Random::<T>::new(&lens, 200, 64, 11);
        for (row, len) in lens.iter().enumerate() {
            let mut lame = random.a.clone();
            let entry = lame.pattern().row(row).start + len / 2;
            lame.values_mut()[entry] = T::ZERO;
            let c = random.run(&Context::cpu(), lame.into(), &Options::default());
            let fault = random.fault(Bound::of(dtype), &c);
            assert!(
                fault.is_some_and(|f| f.starts_with(&format!("C[{row},"))),
                "{dtype:?}, row {row}"
            );
        }
    }
    // Random values of an integer type may be zero.
    let has_fractions = |dtype: &Dtype| !matches!(dtype, Dtype::Int8 | Dtype::Int32);
    for dtype in product_dtypes().into_iter().filter(has_fractions) {
        by_type!(dtype, drops(dtype));
    }
}

/// TF32 has the documented precision: operands with ten bits of mantissa are exact, one more bit is rounded.
#[test]
fn tf32_rounds_to_ten_bits_and_only_when_asked() {
    let Some(gpu) = gpu() else { return };
    let row = products_here().find(|row| row.dtype == Dtype::Tf32).unwrap();
    let (block, format) = (row.block.0 as usize, formats(row).swap_remove(0));
    let pattern = spread(&vec![block; block], block);
    let one_product = |value: f32| {
        // A is a diagonal of ones, and B contains the value.
        let diagonal = |p: usize| {
            if p.is_multiple_of(block + 1) { 1.0 } else { 0.0 }
        };
        let a = Csr::new(pattern.clone(), (0..block * block).map(diagonal).collect()).unwrap();
        let b = Dense::new([block, 64], vec![value; block * 64]).unwrap();
        let random = Random { a: a.clone(), b, truth: Vec::new(), magnitude: Vec::new() };
        let a = stored(a, &format);
        random.run(&gpu, a, &force(row))
    };
    let unit = f32::powi(2.0, -10);
    for (value, rounded) in [
        (1.0 + unit, 1.0 + unit),
        (1.0 + 0.75 * unit, 1.0 + unit),
        (1.0 + 0.25 * unit, 1.0),
        (1.0 + 0.5 * unit, 1.0 + unit),
    ] {
        // cvt.rna: ties away from zero.
        assert!(one_product(value).iter().all(|&c| c == rounded), "{value} must become {rounded}");
    }
    assert_eq!(f32::ONE, 1.0);
}
