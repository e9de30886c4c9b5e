//! From one format to another.

mod convert;
mod entries;

use std::fmt::Debug;

use crate::support::dense::upload_values;
use einsparse::formats::{AnySparse, Dense};
use einsparse::{Context, Scalar, SparseTensor, Tensor};

/// The same pattern, and the same bits.
fn assert_same<T: Scalar>(found: &SparseTensor<T>, wanted: &SparseTensor<T>, what: &dyn Debug) {
    let (found, wanted) = (found.to_host().unwrap(), wanted.to_host().unwrap());
    assert_eq!(found.format(), wanted.format(), "{what:?}");
    assert!(found.arrays() == wanted.arrays(), "pattern: {what:?}");
    let bytes = |a: &AnySparse<T>| bytemuck::cast_slice::<T, u8>(a.values()).to_vec();
    let (found, wanted) = (bytes(&found), bytes(&wanted));
    assert_eq!(found.len(), wanted.len(), "{what:?}");
    let differs = (0..wanted.len()).find(|&i| found[i] != wanted[i]);
    assert_eq!(differs, None, "{what:?}: byte");
}

/// Words as the bits of elements, which is how arrays of them are uploaded.
fn words(context: &Context, words: &[u32]) -> Tensor<f32> {
    let data = words.iter().map(|&w| f32::from_bits(w)).collect();
    upload_values(context, &[words.len()], data)
}

fn bits(tensor: &Tensor<f32>) -> Vec<u32> {
    let stored = tensor.to_storage().unwrap();
    stored.iter().map(|v| v.to_bits()).collect()
}

/// A matrix with these elements between its rows.
fn with_gap<T: Scalar>(context: &Context, dense: &Dense<T>, gap: usize) -> Tensor<T> {
    let leading = dense.shape()[1] + gap;
    context
        .upload_strided(dense, leading, T::from_f64(7.0))
        .unwrap()
}
