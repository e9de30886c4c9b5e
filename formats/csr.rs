//! CSR: compressed sparse rows. The hub of the conversions between matrices.

use crate::pattern::matrix;
use crate::{Format, FormatError, IndexArray, Pattern, Sparse, check};

/// Where the entries of a CSR matrix are: `C[m,n] += AV[p] * B[AK[p],n], AP[m] <= p < AP[m+1]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsrPattern {
    shape: [usize; 2],
    offsets: Vec<u32>,
    columns: Vec<u32>,
}

/// A CSR matrix.
pub type Csr<T> = Sparse<CsrPattern, T>;

impl CsrPattern {
    /// Checks and takes the row offsets and the column of every entry.
    ///
    /// # Errors
    /// If there are not `rows + 1` offsets from 0 to the number of entries that never descend, or the columns of a
    /// row are not below `cols` and strictly ascending.
    pub fn new(
        rows: usize,
        cols: usize,
        offsets: Vec<u32>,
        columns: Vec<u32>,
    ) -> Result<Self, FormatError> {
        check::matrix(rows, cols)?;
        check::extent("entries", columns.len())?;
        check::offsets(&offsets, rows, "columns", columns.len())?;
        check::rows_ascend(&offsets, "columns", &columns, cols)?;
        // SAFETY: checked above.
        Ok(unsafe { Self::new_unchecked(rows, cols, offsets, columns) })
    }

    /// Takes the arrays unchecked.
    ///
    /// # Safety
    /// [`CsrPattern::new`] would accept the arguments.
    pub unsafe fn new_unchecked(
        rows: usize,
        cols: usize,
        offsets: Vec<u32>,
        columns: Vec<u32>,
    ) -> Self {
        CsrPattern { shape: [rows, cols], offsets, columns }
    }

    /// Positions of the entries of one row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> std::ops::Range<usize> {
        self.offsets[row] as usize..self.offsets[row + 1] as usize
    }
}

matrix! { CsrPattern {
    /// Where each row starts, and where the last ends.
    offsets,
    /// The column of every entry.
    columns,
} }

impl Pattern for CsrPattern {
    fn format(&self) -> Format {
        Format::Csr
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn value_shape(&self) -> Vec<usize> {
        vec![self.columns.len()]
    }

    fn arrays(&self) -> Vec<IndexArray<'_>> {
        vec![
            IndexArray::offsets(0, &self.offsets),
            IndexArray::coordinate(1, [self.columns.len()], &self.columns),
        ]
    }
}
