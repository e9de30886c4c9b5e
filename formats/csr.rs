//! CSR: compressed sparse rows. Conversions between matrix formats go through CSR.

use crate::error::*;
use crate::pattern::matrix;
use crate::{Format, IndexArray, check};

matrix! {
    /// Pattern of a CSR matrix: `C[m,n] += AV[p] * B[AK[p],n], AP[m] <= p < AP[m+1]`.
    CsrPattern,
    /// A CSR matrix.
    Csr() {
        /// Start of each row in `columns`, and the end of the last row: `rows + 1` offsets.
        offsets: u32,
        /// Column of every entry.
        columns: u32,
    }
    p is Format::Csr;
    values [p.columns.len()];
    arrays [
        IndexArray::offsets(0, &p.offsets),
        IndexArray::coordinate(1, [p.columns.len()], &p.columns),
    ]
}

impl CsrPattern {
    /// Validates and stores the row offsets (`rows + 1`) and the column of every entry.
    ///
    /// # Errors
    /// Returns an error if the offsets are not `rows + 1` non-decreasing numbers from 0 to the number of entries, or if
    /// the columns of a row are not below `cols` and strictly ascending.
    pub fn new(rows: usize, cols: usize, offsets: Vec<u32>, columns: Vec<u32>) -> Result<Self> {
        check::matrix(rows, cols)?;
        check::extent("entries", columns.len())?;
        check::offsets(&offsets, rows, "columns", columns.len())?;
        check::rows_ascend(&offsets, "columns", &columns, cols)?;
        // SAFETY: checked above.
        Ok(unsafe { Self::new_unchecked(rows, cols, offsets, columns) })
    }

    /// Range of positions of the entries of one row.
    ///
    /// # Panics
    /// Panics if `row` is out of range.
    pub fn row(&self, row: usize) -> std::ops::Range<usize> {
        self.offsets[row] as usize..self.offsets[row + 1] as usize
    }
}
