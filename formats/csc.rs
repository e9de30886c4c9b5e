//! CSC: compressed sparse columns.

use crate::pattern::matrix;
use crate::{Format, FormatError, IndexArray, Pattern, Sparse, check};

/// Where the entries of a CSC matrix are: `C[AM[p],n] += AV[p] * B[k,n], AP[k] <= p < AP[k+1]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CscPattern {
    shape: [usize; 2],
    offsets: Vec<u32>,
    rows_idx: Vec<u32>,
}

/// A CSC matrix.
pub type Csc<T> = Sparse<CscPattern, T>;

impl CscPattern {
    /// Checks and takes the column offsets and the row of every entry.
    ///
    /// # Errors
    /// If there are not `cols + 1` offsets from 0 to the number of entries that never descend, or the rows of a
    /// column are not below `rows` and strictly ascending.
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

    /// Takes the arrays unchecked.
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
    /// Where each column starts, and where the last ends.
    offsets,
    /// The row of every entry.
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
