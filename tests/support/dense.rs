//! Dense operands and outputs, where a context wants them.

use einsparse::formats::Dense;
use einsparse::registry::Scalar;
use einsparse::{Context, Tensor};

pub fn nan<T: Scalar>(shape: &[usize]) -> Dense<T> {
    Dense::from_fn(shape, |_| T::from_f64(f64::NAN)).unwrap()
}

/// What a run has to write as a whole: it is NaN before.
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

/// What a tensor holds, row by row.
#[track_caller]
pub fn wide<T: Scalar>(tensor: &Tensor<T>) -> Vec<f64> {
    let dense = tensor.to_dense().unwrap();
    dense.values().iter().map(|v| v.to_f64()).collect()
}
