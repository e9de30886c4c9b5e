//! ELL: every row is padded to the same width. Efficient only if all rows have about the same length.

use crate::pattern::matrix;
use crate::{Format, FormatError, IndexArray, Pattern, Sparse, check};

/// Pattern of an ELL matrix: `C[m,n] += AV[m,q] * B[AK[m,q],n]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EllPattern {
    shape: [usize; 2],
    width: usize,
    columns: Vec<u32>,
    nnz: usize,
}

/// An ELL matrix.
pub type Ell<T> = Sparse<EllPattern, T>;

impl EllPattern {
    /// Validates and stores `rows * width` columns. [`PAD`](crate::PAD) fills the slots after the last entry of a row.
    ///
    /// # Errors
    /// Returns an error if the number of columns is not `rows * width`, if the columns of a row are not below `cols`
    /// and strictly ascending, or if padding precedes an entry of its row.
    pub fn new(
        rows: usize,
        cols: usize,
        width: usize,
        columns: Vec<u32>,
    ) -> Result<Self, FormatError> {
        check::matrix(rows, cols)?;
        check::extent("width", width)?;
        let slots = check::product("slots", &[rows, width])?;
        check::length("columns", columns.len(), slots)?;
        let nnz = check::padded_rows("columns", &columns, width, cols)?;
        Ok(EllPattern { shape: [rows, cols], width, columns, nnz })
    }

    /// Stores the array without validation.
    ///
    /// # Safety
    /// [`EllPattern::new`] would accept the arguments.
    pub unsafe fn new_unchecked(rows: usize, cols: usize, width: usize, columns: Vec<u32>) -> Self {
        EllPattern { shape: [rows, cols], nnz: check::entries(&columns), width, columns }
    }

    /// Slots per row.
    pub fn width(&self) -> usize {
        self.width
    }
}

matrix! { EllPattern {
    /// Column of every slot, `[rows, width]`.
    columns,
} }

impl Pattern for EllPattern {
    fn format(&self) -> Format {
        Format::Ell
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn nnz(&self) -> usize {
        self.nnz
    }

    fn value_shape(&self) -> Vec<usize> {
        vec![self.shape[0], self.width]
    }

    fn arrays(&self) -> Vec<IndexArray<'_>> {
        vec![IndexArray::coordinate(1, self.value_shape(), &self.columns)]
    }
}
