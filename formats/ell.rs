//! ELL: every row is padded to the same width. Efficient only if all rows have about the same length.

use crate::error::*;
use crate::pattern::matrix;
use crate::{Format, IndexArray, check};

matrix! {
    /// Pattern of an ELL matrix: `C[m,n] += AV[m,q] * B[AK[m,q],n]`.
    EllPattern,
    /// An ELL matrix.
    Ell(
        /// Slots per row.
        width: usize
    ) {
        /// Column of every slot, `[rows, width]`.
        columns: u32,
    }
    p is Format::Ell;
    stores nnz: check::entries(&p.columns);
    nnz p.nnz;
    values [p.shape[0], p.width];
    arrays [IndexArray::coordinate(1, [p.shape[0], p.width], &p.columns)]
}

impl EllPattern {
    /// Validates and stores `rows * width` columns. [`PAD`](crate::PAD) fills the slots after the last entry of a row.
    ///
    /// # Errors
    /// Returns an error if the number of columns is not `rows * width`, if the columns of a row are not below `cols`
    /// and strictly ascending, or if padding precedes an entry of its row.
    pub fn new(rows: usize, cols: usize, width: usize, columns: Vec<u32>) -> Result<Self> {
        check::matrix(rows, cols)?;
        check::extent("width", width)?;
        let slots = check::product("slots", &[rows, width])?;
        check::length("columns", columns.len(), slots)?;
        let nnz = check::padded_rows("columns", &columns, width, cols)?;
        Ok(EllPattern { shape: [rows, cols], width, columns, nnz })
    }
}
