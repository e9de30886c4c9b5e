//! Values of operands, from a hash of their index.

use einsparse::Scalar;
use einsparse::formats::Dense;
use einsparse::registry::Dtype;
use rayon::prelude::*;

pub fn hash(i: usize) -> u64 {
    let mixed = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Uniform in -1..1.
fn unit(i: usize) -> f64 {
    (hash(i) >> 40) as f64 / f64::from(1 << 23) - 1.0
}

/// Bound of uniform values of variance 1.
pub const NORMAL: f64 = 1.732;

/// A byte for 8-bit integers; uniform in -1..1 for floats.
pub fn value<T: Scalar>(i: usize) -> T {
    T::from_f64(match T::DTYPE {
        Dtype::Int8 => (hash(i) >> 56) as f64 - 128.0,
        _ => unit(i),
    })
}

/// `count` values from index `start` of the sequence of [`value`].
pub fn sequence<T: Scalar>(count: usize, start: usize) -> Vec<T> {
    (start..start + count).into_par_iter().map(value).collect()
}

/// Uniform in `-most..most`.
pub fn values<T: Scalar>(count: usize, seed: usize, most: f64) -> Vec<T> {
    let start = seed << 40;
    (0..count).into_par_iter().map(|i| T::from_f64(unit(start + i) * most)).collect()
}

/// Matrix or tensor of values that are uniform in `-most..most`.
pub fn dense<T: Scalar>(shape: &[usize], seed: usize, most: f64) -> Dense<T> {
    let values = values(shape.iter().product(), seed, most);
    Dense::new(shape.to_vec(), values).expect("one value for each element")
}
