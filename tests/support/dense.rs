//! Dense operands and outputs in the memory of a context.

use super::Rng;
use einsparse::formats::Dense;
use einsparse::registry::Scalar;
use einsparse::{Context, Tensor};

pub fn nan<T: Scalar>(shape: &[usize]) -> Dense<T> {
    Dense::from_fn(shape, |_| T::from_f64(f64::NAN)).unwrap()
}

/// Integers from -2 to 2.
pub fn integers<T: Scalar>(shape: &[usize], seed: u64) -> Dense<T> {
    Dense::new(shape, Rng(seed).integers(shape.iter().product())).unwrap()
}

/// An output of NaN, which a run must overwrite entirely.
#[track_caller]
pub fn poisoned<T: Scalar>(context: &Context, shape: &[usize]) -> Tensor<T> {
    context.upload_dense(&nan::<T>(shape)).unwrap()
}

#[track_caller]
pub fn upload<T: Scalar, const N: usize>(
    context: &Context,
    dense: [&Dense<T>; N],
) -> [Tensor<T>; N] {
    dense.map(|dense| context.upload_dense(dense).unwrap())
}

#[track_caller]
pub fn upload_values<T: Scalar>(context: &Context, shape: &[usize], values: Vec<T>) -> Tensor<T> {
    let dense = Dense::new(shape, values).unwrap();
    context.upload_dense(&dense).unwrap()
}

/// A tensor with this row stride in elements, and `gap` between the rows.
#[track_caller]
pub fn strided<T: Scalar>(
    context: &Context,
    dense: &Dense<T>,
    leading: usize,
    gap: T,
) -> Tensor<T> {
    context.upload_strided(dense, leading, gap).unwrap()
}

/// Transposes a matrix.
pub fn transposed<T: Scalar>(a: &Dense<T>) -> Dense<T> {
    let [rows, columns] = [a.shape()[0], a.shape()[1]];
    Dense::from_fn([columns, rows], |i| a.values()[i[1] * columns + i[0]]).unwrap()
}

/// Returns these rows as a column slice of wider rows, whose other columns before and after it contain `beside`.
#[track_caller]
pub fn among_columns<T: Scalar>(
    context: &Context,
    dense: &Dense<T>,
    [before, behind]: [usize; 2],
    beside: T,
) -> Tensor<T> {
    let mut shape = dense.shape().to_vec();
    let last = shape.last_mut().expect("columns");
    let own = before..before + *last;
    *last += before + behind;
    let wide = Dense::from_fn(shape, |_| beside).unwrap();
    let mut whole = context.upload_dense(&wide).unwrap();
    let mut columns = whole.columns_mut(own).unwrap();
    columns.write(dense).unwrap();
    // The swap returns the view, which keeps the storage alive.
    let mut kept = context.zeros(&[0]).unwrap();
    std::mem::swap(&mut *columns, &mut kept);
    kept
}

/// Whether all columns of the storage contain `beside`, except for the adjacent columns of the tensor.
pub fn is_beside<T: Scalar>(tensor: &Tensor<T>, beside: f64) -> bool {
    let columns = tensor.shape().last().copied().unwrap_or(1);
    let stored = tensor.to_storage().unwrap();
    let leading = tensor.leading().max(1);
    let is = |x: &T| x.to_f64() == beside;
    (0..=leading - columns.min(leading)).any(|first| {
        let mut rows = stored.chunks(leading);
        rows.all(|row| {
            let (before, own) = row.split_at(first.min(row.len()));
            let behind = own.get(columns..).unwrap_or_default();
            before.iter().chain(behind).all(is)
        })
    })
}

/// Elements of a tensor as f64, row by row.
#[track_caller]
pub fn wide<T: Scalar>(tensor: &Tensor<T>) -> Vec<f64> {
    let dense = tensor.to_dense().unwrap();
    dense.values().iter().map(|v| v.to_f64()).collect()
}

/// Checks every element for equality with a value in f64, rounded once. NaN equals NaN.
#[track_caller]
pub fn assert_exact<T: Scalar>(found: &Tensor<T>, wanted: &[f64], what: &str) {
    assert_equal(what, &wide(found), &rounded::<T>(wanted));
}

/// Rounds values once to the precision of `T`.
pub fn rounded<T: Scalar>(values: &[f64]) -> Vec<f64> {
    values.iter().map(|x| T::from_f64(*x).to_f64()).collect()
}

/// Checks every element for equality. NaN equals NaN.
#[track_caller]
pub fn assert_equal(what: &str, found: &[f64], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len(), "{what}: length");
    let differ = |(a, b): (&f64, &f64)| a != b && !(a.is_nan() && b.is_nan());
    if let Some(at) = found.iter().zip(wanted).position(differ) {
        panic!("{what}: [{at}] is {}, not {}", found[at], wanted[at]);
    }
}
