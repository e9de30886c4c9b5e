//! What is asked of results: equality with loops to the bit, or to within a rounding, and nothing written beside them.

use einsparse::{Scalar, SparseTensor, Tensor};

use crate::random::first_difference;
use crate::support::GUARD;
use crate::support::dense::is_beside;

thread_local! {
    /// Whether results on this thread are of no account: refusals alone are compared.
    static IGNORED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// From now on results on this thread are not looked at.
pub fn ignore_results() {
    IGNORED.set(true);
}

/// What a run writes, of any type.
pub trait Written {
    /// Whether it holds what it did before.
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
        // Slots beside the matrix hold whatever a GPU makes of them.
        let own = self.to_host().unwrap();
        let entries = own.map_values(|_| T::ONE).to_dense().unwrap();
        let values = own.to_dense().unwrap();
        let mut both = entries.values().iter().zip(values.values());
        both.all(|(entry, value)| *entry == T::ZERO || value.to_f64().is_nan())
    }
}

/// Every element is the one wanted, rounded to its type, and nothing between rows is written.
pub fn same<T: Scalar>(what: &str, found: &Tensor<T>, wanted: &[f64]) {
    let values = found.to_dense().unwrap().into_values();
    same_values(what, &values, wanted);
    no_gap_is_written(what, found);
}

/// Nothing between rows is written.
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

/// The same to within a share of what is wanted, or of 1. `size`: the largest sum of magnitudes, of sums that are
/// rounded on the way.
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
