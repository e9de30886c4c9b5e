//! Conversions between formats.

mod convert;
mod entries;

use std::fmt::Debug;

use crate::support::Rng;
use crate::support::dense::{strided, upload_values};
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, generate};
use einsparse::{Context, Scalar, SparseTensor, Tensor};

/// Requires equal patterns and equal bits.
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

/// Uploads words as the bits of f32 elements, because tensors hold only elements.
fn words(context: &Context, words: &[u32]) -> Tensor<f32> {
    let data = words.iter().map(|&w| f32::from_bits(w)).collect();
    upload_values(context, &[words.len()], data)
}

fn bits(tensor: &Tensor<f32>) -> Vec<u32> {
    let stored = tensor.to_storage().unwrap();
    stored.iter().map(|v| v.to_bits()).collect()
}

/// Uploads a matrix with `gap` elements of 7 between its rows.
fn with_gap<T: Scalar>(context: &Context, dense: &Dense<T>, gap: usize) -> Tensor<T> {
    let leading = dense.shape()[1] + gap;
    strided(context, dense, leading, T::from_f64(7.0))
}

const SHAPES: [(usize, usize); 11] = [
    (0, 0),
    (0, 40),
    (40, 0),
    (1, 1),
    (16, 16),
    (37, 53),
    (700, 24),
    (24, 700),
    (300, 1000),
    (256, 512),
    (65, 4400),
];

/// Returns patterns with rows of all lengths.
fn uneven() -> Vec<CsrPattern> {
    vec![
        generate::uniform(0, 0, 0.5, 1).unwrap(),
        generate::uniform(40, 0, 0.5, 1).unwrap(),
        generate::uniform(70, 900, 0.02, 2).unwrap(),
        generate::uniform(600, 90, 0.3, 3).unwrap(),
        generate::uniform(128, 2048, 1.0, 4).unwrap(),
        generate::uniform(50, 100_000, 0.0002, 5).unwrap(),
        generate::uniform(3, 2_000_000, 0.00003, 6).unwrap(),
        generate::karate(),
    ]
}

fn integers<T: Scalar>(pattern: CsrPattern) -> Csr<T> {
    let mut rng = Rng(9);
    let value = |_| T::from_f64((rng.word() % 100) as f64 - 50.0);
    let values = (0..pattern.columns().len()).map(value).collect();
    Csr::new(pattern, values).unwrap()
}
