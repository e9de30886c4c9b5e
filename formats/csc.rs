//! CSC: compressed sparse columns.

use crate::error::*;
use crate::pattern::matrix;
use crate::{Format, IndexArray, check};

matrix! {
    /// Pattern of a CSC matrix: `C[AM[p],n] += AV[p] * B[k,n], AP[k] <= p < AP[k+1]`.
    CscPattern,
    /// A CSC matrix.
    Csc() {
        /// Start of each column in `rows_idx`, and the end of the last column: `cols + 1` offsets.
        offsets: u32,
        /// Row of every entry.
        rows_idx: u32,
    }
    p is Format::Csc;
    values [p.rows_idx.len()];
    arrays [
        IndexArray::offsets(1, &p.offsets),
        IndexArray::coordinate(0, [p.rows_idx.len()], &p.rows_idx),
    ]
}

impl CscPattern {
    /// Validates and stores the column offsets (`cols + 1`) and the row of every entry.
    ///
    /// # Errors
    /// Returns an error if the offsets are not `cols + 1` non-decreasing numbers from 0 to the number of entries, or if
    /// the rows of a column are not below `rows` and strictly ascending.
    pub fn new(rows: usize, cols: usize, offsets: Vec<u32>, rows_idx: Vec<u32>) -> Result<Self> {
        check::matrix(rows, cols)?;
        check::extent("entries", rows_idx.len())?;
        check::offsets(&offsets, cols, "rows_idx", rows_idx.len())?;
        check::rows_ascend(&offsets, "rows_idx", &rows_idx, rows)?;
        // SAFETY: checked above.
        Ok(unsafe { Self::new_unchecked(rows, cols, offsets, rows_idx) })
    }
}
