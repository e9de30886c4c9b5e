//! Checks of results: equality with loops, bit for bit or within rounding, and no writes next to an output.

use einsparse::{Scalar, SparseTensor, Tensor};

use crate::random::first_difference;
use crate::support::GUARD;
use crate::support::dense::is_beside;

thread_local! {
    /// Whether checks of results are off on this thread: only refusals are compared.
    static IGNORED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Turns off checks of results on this thread.
pub fn ignore_results() {
    IGNORED.set(true);
}

/// Output of a run, of any type.
pub trait Written {
    /// Whether the output has its content from before the run.
    fn is_untouched(&self) -> bool;
}

impl<T: Scalar> Written for Tensor<T> {
    fn is_untouched(&self) -> bool {
        let own = self.to_dense().unwrap();
        let is_nan = |x: &T| x.to_f64().is_nan();
        own.values().iter().all(is_nan) && is_beside(self, GUARD)
    }
}

impl<T: Scalar> Written for SparseTensor<T> {
    fn is_untouched(&self) -> bool {
        // Slots outside of the matrix may have any value on a GPU.
        let own = self.to_host().unwrap();
        let entries = own.map_values(|_| T::ONE).to_dense().unwrap();
        let values = own.to_dense().unwrap();
        let mut both = entries.values().iter().zip(values.values());
        both.all(|(entry, value)| *entry == T::ZERO || value.to_f64().is_nan())
    }
}

/// Checks every element, rounded to its type, and that gaps between rows are not written.
pub fn same<T: Scalar>(what: &str, found: &Tensor<T>, wanted: &[f64]) {
    let values = found.to_dense().unwrap().into_values();
    same_values(what, &values, wanted);
    no_gap_is_written(what, found);
}

/// Checks that gaps between rows are not written.
pub fn no_gap_is_written<T: Scalar>(what: &str, found: &Tensor<T>) {
    if IGNORED.get() {
        return;
    }
    assert!(is_beside(found, GUARD), "{what}: a gap is written");
}

pub fn same_values<T: Scalar>(what: &str, found: &[T], wanted: &[f64]) {
    if IGNORED.get() {
        return;
    }
    if let Some(difference) = first_difference(found, wanted) {
        panic!("{what}: {difference}");
    }
}

/// Checks values within a fraction of the expected value or of 1. `size`: the largest sum of magnitudes, if
/// intermediate results are rounded.
pub fn near<T: Scalar>(what: &str, found: &[T], wanted: &[f64], size: f64) {
    if IGNORED.get() {
        return;
    }
    assert_eq!(found.len(), wanted.len(), "{what}");
    let within = match T::NAME {
        "f64" => 1e-12,
        "f32" => 1e-5,
        "f16" => 2e-3,
        _ => 1.6e-2,
    };
    let of_sums = size * if T::NAME == "f64" { 1e-14 } else { 1e-6 };
    for (at, (found, &wanted)) in found.iter().zip(wanted).enumerate() {
        let found = found.to_f64();
        let is_same = found == wanted || found.is_nan() && wanted.is_nan();
        let is_near = wanted.is_finite()
            && (found - wanted).abs() <= within * wanted.abs().max(1.0) + of_sums;
        assert!(is_same || is_near, "{what}: element {at} is {found}, not {wanted}");
    }
}
