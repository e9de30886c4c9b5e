//! Selection of the elements of a dense matrix that become entries. The rules are bitwise defined: the GPU follows the
//! same rules and keeps the same entries.

use super::tasks::prefix_sum;
use crate::error::*;
use crate::parallel;
use crate::{Csr, CsrPattern, Dense, Element, Sparse, allocate, check, convert::matrix};

/// Selection of the elements of a dense matrix that become stored entries. NaN has the largest magnitude, whatever its
/// bits. Zeros of either sign are never kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EntryChoice {
    /// Elements other than zero. The conversion is lossless.
    NonZero,
    /// Elements whose magnitude is above this threshold, which must be at least 0. The comparison is exact.
    Above(f64),
    /// The elements with the largest magnitudes of each row, at most this many. Of equal magnitudes the lowest columns
    /// are kept.
    TopPerRow(usize),
}

impl EntryChoice {
    /// # Errors
    /// Returns [`FormatError::Shape`] for a threshold that is negative or NaN.
    pub fn check(&self) -> Result<()> {
        match *self {
            EntryChoice::Above(threshold) => check::threshold("magnitude threshold", threshold),
            _ => Ok(()),
        }
    }

    /// Kept columns of a row, ascending.
    fn of_row<T: Element>(&self, row: &[T]) -> Vec<u32> {
        let size = |v: T| match v.to_f64() {
            x if x.is_nan() => u64::MAX,
            x => x.abs().to_bits(),
        };
        let columns = |keep: &dyn Fn(T) -> bool| {
            let kept = (0u32..).zip(row).filter(|&(_, &v)| keep(v));
            kept.map(|(c, _)| c).collect::<Vec<_>>()
        };
        match *self {
            EntryChoice::NonZero => columns(&|v| size(v) > 0),
            EntryChoice::Above(threshold) => columns(&|v| size(v) > threshold.abs().to_bits()),
            EntryChoice::TopPerRow(count) => {
                let mut order = columns(&|v| size(v) > 0);
                order.sort_by_key(|&c| std::cmp::Reverse(size(row[c as usize])));
                order.truncate(count);
                order.sort_unstable();
                order
            }
        }
    }
}

/// Converts the entries of `choice` of a dense matrix to CSR.
///
/// # Errors
/// Returns an error if the tensor is not a matrix, the threshold is negative or NaN, or the number of entries exceeds
/// u32.
pub fn dense_to_csr_by<T: Element>(dense: &Dense<T>, choice: EntryChoice) -> Result<Csr<T>> {
    let (rows, cols) = matrix(dense.shape())?;
    check::matrix(rows, cols)?;
    choice.check()?;
    let held = size_of_val(dense.values()) as u64;
    allocate::extent("rows", rows as u128, 56, held)?;
    let line = |r: usize| &dense.values()[r * cols..][..cols];
    let kept: Vec<Vec<u32>> = parallel::collect(rows, 16, &|r| choice.of_row(line(r)));
    let offsets = prefix_sum("entries", kept.iter().map(Vec::len))?;
    let values = kept.iter().enumerate();
    let values = values.flat_map(|(r, columns)| columns.iter().map(move |&c| line(r)[c as usize]));
    let values = values.collect();
    // SAFETY: columns are in ascending order and come from rows of `cols` elements.
    let pattern = unsafe { CsrPattern::new_unchecked(rows, cols, offsets, kept.concat()) };
    Sparse::new(pattern, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_kept_by_magnitude_then_column() {
        let nan = f32::NAN;
        let dense = Dense::new([2, 5], vec![1.0, -3.0, 0.0, 3.0, -0.0, nan, 2.0, 2.0, -2.0, 0.5]);
        let dense = dense.unwrap();
        let kept = |choice| {
            let csr = dense_to_csr_by(&dense, choice).unwrap();
            let offsets = csr.pattern().offsets().to_vec();
            (offsets, csr.pattern().columns().to_vec())
        };
        assert_eq!(kept(EntryChoice::NonZero), (vec![0, 3, 8], vec![0, 1, 3, 0, 1, 2, 3, 4]));
        assert_eq!(kept(EntryChoice::Above(1.0)), (vec![0, 2, 6], vec![1, 3, 0, 1, 2, 3]));
        assert_eq!(kept(EntryChoice::Above(f64::INFINITY)), (vec![0, 0, 1], vec![0]));
        assert_eq!(kept(EntryChoice::TopPerRow(1)), (vec![0, 1, 2], vec![1, 0]));
        assert_eq!(kept(EntryChoice::TopPerRow(3)), (vec![0, 3, 6], vec![0, 1, 3, 0, 1, 2]));
        assert_eq!(kept(EntryChoice::TopPerRow(0)), (vec![0, 0, 0], vec![]));
        assert!(dense_to_csr_by(&dense, EntryChoice::Above(-1.0)).is_err());
        assert!(dense_to_csr_by(&dense, EntryChoice::Above(f64::NAN)).is_err());
    }
}
