//! Reference results: sparse tensors by their nonzeros, and dense products by loops.

use einsparse::Scalar;
use einsparse::formats::{AnySparse, Coo};

use super::trial::Outcome;

/// Positions of nonzeros, and their values.
pub type Entries = Vec<(Vec<usize>, f64)>;

/// Creates a tensor of a shape from its nonzeros.
pub fn coo<T: Scalar>(shape: &[usize], entries: &[(Vec<usize>, f64)]) -> AnySparse<T> {
    let axis = |at: usize| entries.iter().map(|(place, _)| place[at] as u32).collect();
    let coords = (0..shape.len()).map(axis).collect();
    let values = entries.iter().map(|(_, x)| T::from_f64(*x)).collect();
    Coo::from_entries(shape.to_vec(), coords, values).unwrap().into()
}

/// Creates a tensor in a format, if the format supports it.
pub fn sparse_of<T: Scalar>(
    shape: &[usize],
    entries: &[(Vec<usize>, f64)],
    format: &str,
) -> Result<AnySparse<T>, Outcome> {
    let all = coo::<T>(shape, entries);
    let made = all.convert(format.parse().unwrap());
    made.map_err(|_| Outcome::Unsupported)
}

/// Copies a sparse tensor with NaN as all values: the content of outputs before a run.
pub fn of_nan<T: Scalar>(sparse: &AnySparse<T>) -> AnySparse<T> {
    sparse.map_values(|_| T::from_f64(f64::NAN))
}

/// `C[m,n] = A[m,k] * B[k,n]` in f64, by loops.
pub fn product(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    let mut c = vec![0.0; m * n];
    for i in 0..m {
        for x in 0..k {
            let factor = a[i * k + x];
            let line = &b[x * n..][..n];
            for (c, b) in c[i * n..][..n].iter_mut().zip(line) {
                *c += factor * b;
            }
        }
    }
    c
}

/// Transposes a matrix.
pub fn turned(matrix: &[f64], [rows, columns]: [usize; 2]) -> Vec<f64> {
    let at = |i: usize| matrix[i % rows * columns + i / rows];
    (0..rows * columns).map(at).collect()
}
