//! Validation of results against references in f64: all rows of small problems, a sample of rows of large ones. Errors
//! are in multiples of their bound.

use crate::case::{Case, decode};
use crate::device::{Buffer, Result};
use crate::problems::Dtype;
use einsparse::formats::CsrPattern;
use einsparse::registry;
use einsparse::{Scalar, Tensor};
use rayon::prelude::*;

/// Max multiplications of the reference. Problems that need more are sampled.
const REFERENCE_PRODUCTS: usize = 1 << 24;
/// Max bytes of a C in which every element is checked for NaN.
const SCAN_BYTES: usize = 16 << 20;

/// Sum of products, and the sum of their magnitudes.
#[derive(Clone, Copy, Default)]
pub struct Sum {
    pub value: f64,
    pub size: f64,
}

impl Sum {
    pub fn add(&mut self, term: f64) {
        self.value += term;
        self.size += term.abs();
    }
}

impl FromIterator<f64> for Sum {
    fn from_iter<I: IntoIterator<Item = f64>>(terms: I) -> Self {
        let mut sum = Self::default();
        terms.into_iter().for_each(|term| sum.add(term));
        sum
    }
}

/// Returns the larger of two errors; infinity once an error is NaN.
pub fn worse(worst: f64, error: f64) -> f64 {
    match error.is_nan() {
        true => f64::INFINITY,
        false => worst.max(error),
    }
}

/// Error of a comparison that allows no difference.
pub fn exact(right: bool) -> f64 {
    if right { 0.0 } else { f64::INFINITY }
}

/// Error in multiples of its bound.
pub fn over(error: f64, bound: f64) -> f64 {
    if error == 0.0 { 0.0 } else { error / bound }
}

/// Unit roundoff of values of a type.
pub fn roundoff<T: Scalar>() -> f64 {
    0.5f64.powi(match T::DTYPE {
        registry::Dtype::F64 => 53,
        registry::Dtype::F16 => 11,
        registry::Dtype::Bf16 => 8,
        _ => 24,
    })
}

/// Error of a sum of `count` terms. The bound is one rounding of the result, and those of sums in f32 (f64 for f64).
pub fn rounding<T: Scalar>(count: usize) -> impl Fn(f64, &Sum) -> f64 {
    let (out, sums) = (roundoff::<T>(), roundoff::<T>().min(0.5f64.powi(24)));
    let sums = 4.0 * sums * (count as f64).sqrt();
    move |found, sum| {
        let bound = out * sum.value.abs() + sums * sum.size + 0.5f64.powi(25);
        over((found - sum.value).abs(), bound)
    }
}

/// Error of a sum. The bound is a share of the magnitudes of the terms; 0 for sums of integers, which are exact.
pub fn relative(share: f64) -> impl Fn(f64, &Sum) -> f64 {
    move |found, sum| over((found - sum.value).abs(), share * sum.size)
}

/// Max error of some rows of `c`, which has rows of `n` elements. `terms` adds the terms of a row to the sums of its
/// elements. `error` compares an element with its sum.
pub fn rows_error<T: Scalar>(
    c: &[T],
    n: usize,
    rows: impl IntoIterator<Item = usize>,
    terms: impl Fn(usize, &mut [Sum]) + Sync,
    error: impl Fn(f64, &Sum) -> f64 + Sync,
) -> f64 {
    let rows: Vec<usize> = rows.into_iter().collect();
    let of_row = |&row: &usize| {
        let mut sums = vec![Sum::default(); n];
        terms(row, &mut sums);
        let pairs = c[row * n..][..n].iter().zip(&sums);
        pairs.map(|(found, sum)| error(found.to_f64(), sum)).fold(0.0, worse)
    };
    rows.par_iter().map(of_row).reduce(|| 0.0, worse)
}

/// [`rows_error`] of `A B`, with A by index and B row-major.
pub fn product_error<T: Scalar>(
    a: impl Fn(usize, usize) -> T + Sync,
    b: &[T],
    c: &Tensor<T>,
    rows: impl IntoIterator<Item = usize>,
) -> Result<f64> {
    let c = c.to_dense()?;
    let n = c.shape()[1];
    let depth = b.len() / n;
    let terms = |row: usize, sums: &mut [Sum]| {
        for k in 0..depth {
            let x = a(row, k).to_f64();
            if x != 0.0 {
                add_line(sums, x, &b[k * n..]);
            }
        }
    };
    Ok(rows_error(c.values(), n, rows, terms, rounding::<T>(depth)))
}

/// Adds the products of `x` and each element of `line`.
pub fn add_line<T: Scalar>(sums: &mut [Sum], x: f64, line: &[T]) {
    sums.iter_mut().zip(line).for_each(|(sum, y)| sum.add(x * y.to_f64()));
}

/// Terms of a row of a product of a sparse matrix: nonzero `p` is `a(p)`, element `(k, j)` of the dense one `b(k, j)`.
pub fn gathered(
    pattern: &CsrPattern,
    a: impl Fn(usize) -> f64,
    b: impl Fn(usize, usize) -> f64,
) -> impl Fn(usize, &mut [Sum]) {
    move |row, sums| {
        for p in pattern.row(row) {
            let (x, k) = (a(p), pattern.columns()[p] as usize);
            sums.iter_mut().enumerate().for_each(|(j, sum)| sum.add(x * b(k, j)));
        }
    }
}

/// Max difference of two tensors, as a share of the max element.
pub fn largest_error<T: Scalar>(found: &Tensor<T>, wanted: &Tensor<T>) -> Result<f64> {
    let (found, wanted) = (found.to_dense()?, wanted.to_dense()?);
    let pairs = found.values().iter().zip(wanted.values());
    let pairs = pairs.map(|(found, wanted)| (found.to_f64(), wanted.to_f64()));
    let (worst, largest) = pairs.fold((0f64, 0f64), |(worst, largest), (found, wanted)| {
        (worse(worst, (found - wanted).abs()), largest.max(wanted.abs()))
    });
    Ok(over(worst, largest))
}

/// Relative error in the Frobenius norm; NaN if `found` contains NaN.
pub fn relative_error(found: &[f64], expected: &[f64]) -> f64 {
    let pairs = found.iter().zip(expected);
    let error: f64 = pairs.map(|(x, y)| (x - y) * (x - y)).sum();
    let norm: f64 = expected.iter().map(|y| y * y).sum();
    (error / norm).sqrt()
}

/// Reads all elements of a matrix from device memory.
pub fn elements(matrix: &Buffer, dtype: Dtype) -> Result<Vec<f64>> {
    let mut bytes = vec![0u8; matrix.bytes];
    matrix.read(0, &mut bytes)?;
    let one = |bytes| decode(dtype, bytes);
    Ok(bytes.chunks(dtype.size()).map(one).collect())
}

/// Whether the buffer contains exactly `wanted`.
pub fn same<T: bytemuck::NoUninit>(buffer: &Buffer, wanted: &[T]) -> Result<bool> {
    let wanted: &[u8] = bytemuck::cast_slice(wanted);
    let mut found = vec![0; wanted.len()];
    buffer.read(0, &mut found)?;
    Ok(found == wanted)
}

/// Reference values of chosen rows of C.
pub struct Reference {
    rows: Vec<usize>,
    /// Sums of every element of these rows, row-major.
    elements: Vec<Sum>,
}

/// Result of a comparison.
pub struct Verdict {
    /// Relative error in the Frobenius norm over the chosen rows.
    pub relative: f64,
    /// Description of the error; `None` if the result is correct.
    pub wrong: Option<String>,
}

impl Reference {
    /// Samples the first, the last and the longest row, and as many evenly spaced rows as the limit allows.
    pub fn new(case: &Case<'_>) -> Self {
        let (m, _, nnz) = case.problem.extents();
        let offsets = case.problem.pattern.offsets();
        let length = |&row: &usize| offsets[row + 1] - offsets[row];
        let mean = (nnz * case.n / m.max(1)).max(1);
        let count = (REFERENCE_PRODUCTS / mean).clamp(16, 512).min(m);
        let mut rows: Vec<usize> = (0..count).map(|i| i * m / count.max(1)).collect();
        rows.extend((0..m).max_by_key(length));
        rows.extend(m.checked_sub(1));
        rows.sort_unstable();
        rows.dedup();
        let mut elements = Vec::with_capacity(rows.len() * case.n);
        for &row in &rows {
            let start = elements.len();
            elements.resize(start + case.n, Sum::default());
            for p in offsets[row] as usize..offsets[row + 1] as usize {
                let (a, k) = (case.values.a(p), case.problem.pattern.columns()[p] as usize);
                for (n, sum) in elements[start..].iter_mut().enumerate() {
                    sum.add(a * case.values.b(k * case.n + n));
                }
            }
        }
        Self { rows, elements }
    }

    /// Compares the device's C with the reference. With `tolerance`, the error in the norm is bounded. Otherwise each
    /// element is bounded by u_out |c| + 4 u_acc sqrt(K) sum |a||b| + half a step of subnormal results.
    pub fn compare(&self, case: &Case<'_>, tolerance: Option<f64>) -> Result<Verdict> {
        let (dtype, n) = (case.dtype(), case.n);
        let (m, k, _) = case.problem.extents();
        let row_bytes = n * dtype.size();
        if let Some(place) = unwritten(case, m * row_bytes)? {
            let wrong = format!("NaN at ({}, {})", place / n, place % n);
            return Ok(Verdict { relative: f64::NAN, wrong: Some(wrong) });
        }
        let (u_out, u_acc) = dtype.roundoff();
        let floor = if dtype == Dtype::F16 { 2f64.powi(-25) } else { 0.0 };
        let (mut error, mut norm, mut wrong) = (0.0, 0.0, None);
        let mut bytes = vec![0u8; row_bytes];
        for (&row, expected) in self.rows.iter().zip(self.elements.chunks(n)) {
            case.operands.c.read(row * row_bytes, &mut bytes)?;
            let found = bytes.chunks(dtype.size()).map(|bytes| decode(dtype, bytes));
            for (column, (found, &Sum { value: c, size })) in found.zip(expected).enumerate() {
                let bound = u_out * c.abs() + 4.0 * u_acc * (k as f64).sqrt() * size + floor;
                let beyond = tolerance.is_none() && (found - c).abs() > bound;
                if (beyond || found.is_nan()) && wrong.is_none() {
                    wrong = Some(format!("({row}, {column}) is {found}, not {c}"));
                }
                error += (found - c) * (found - c);
                norm += c * c;
            }
        }
        let relative = if norm > 0.0 { (error / norm).sqrt() } else { error.sqrt() };
        if let Some(limit) = tolerance.filter(|&limit| relative > limit) {
            wrong = wrong.or(Some(format!("relative error {relative:.1e} > {limit:.0e}")));
        }
        Ok(Verdict { relative, wrong })
    }
}

/// Index of the first NaN of a small C.
fn unwritten(case: &Case<'_>, bytes: usize) -> Result<Option<usize>> {
    if bytes > SCAN_BYTES {
        return Ok(None);
    }
    let mut all = vec![0u8; bytes];
    case.operands.c.read(0, &mut all)?;
    let mut all = all.chunks(case.dtype().size());
    Ok(all.position(|element| decode(case.dtype(), element).is_nan()))
}
