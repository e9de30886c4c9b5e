//! CSC: compressed sparse columns.

use crate::pattern::matrix;
use crate::{Format, FormatError, IndexArray, Pattern, Sparse, check};

/// Pattern of a CSC matrix: `C[AM[p],n] += AV[p] * B[k,n], AP[k] <= p < AP[k+1]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CscPattern {
    shape: [usize; 2],
    offsets: Vec<u32>,
    rows_idx: Vec<u32>,
}

/// A CSC matrix.
pub type Csc<T> = Sparse<CscPattern, T>;

impl CscPattern {
    /// Validates and stores the column offsets (`cols + 1`) and the row of every entry.
    ///
    /// # Errors
    /// Returns an error if the offsets are not `cols + 1` non-decreasing numbers from 0 to the number of entries, or if
    /// the rows of a column are not below `rows` and strictly ascending.
    pub fn new(
        rows: usize,
        cols: usize,
        offsets: Vec<u32>,
        rows_idx: Vec<u32>,
    ) -> Result<Self, FormatError> {
        check::matrix(rows, cols)?;
        check::extent("entries", rows_idx.len())?;
        check::offsets(&offsets, cols, "rows_idx", rows_idx.len())?;
        check::rows_ascend(&offsets, "rows_idx", &rows_idx, rows)?;
        // SAFETY: checked above.
        Ok(unsafe { Self::new_unchecked(rows, cols, offsets, rows_idx) })
    }

    /// Stores the arrays without validation.
    ///
    /// # Safety
    /// [`CscPattern::new`] would accept the arguments.
    pub unsafe fn new_unchecked(
        rows: usize,
        cols: usize,
        offsets: Vec<u32>,
        rows_idx: Vec<u32>,
    ) -> Self {
        CscPattern { shape: [rows, cols], offsets, rows_idx }
    }
}

matrix! { CscPattern {
    /// Start of each column in `rows_idx`, and the end of the last column: `cols + 1` offsets.
    offsets,
    /// Row of every entry.
    rows_idx,
} }

impl Pattern for CscPattern {
    fn format(&self) -> Format {
        Format::Csc
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn value_shape(&self) -> Vec<usize> {
        vec![self.rows_idx.len()]
    }

    fn arrays(&self) -> Vec<IndexArray<'_>> {
        vec![
            IndexArray::offsets(1, &self.offsets),
            IndexArray::coordinate(0, [self.rows_idx.len()], &self.rows_idx),
        ]
    }
}
