//! BSR: compressed block rows of dense blocks. The block grid is rounded up. Elements of edge blocks outside the
//! shape are zero and never read.

use crate::pattern::matrix;
use crate::{Format, FormatError, IndexArray, Pattern, Sparse, check};

/// Pattern of a BSR matrix: `C[m',bm,n] += AV[p,bm,bk] * B[AK[p],bk,n], AP[m'] <= p < AP[m'+1]`.
///
/// The shape of the values is `[blocks, bm, bk]`, row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BsrPattern {
    shape: [usize; 2],
    block: (usize, usize),
    offsets: Vec<u32>,
    columns: Vec<u32>,
}

/// A BSR matrix.
pub type Bsr<T> = Sparse<BsrPattern, T>;

impl BsrPattern {
    /// Validates and stores the block-row offsets (one more than block rows) and the block column of every block.
    ///
    /// # Errors
    /// Returns an error if a block extent is 0, if the offsets have the wrong number or do not ascend from 0 to the
    /// number of blocks, or if the block columns of a block row are not in the grid and strictly ascending.
    pub fn new(
        rows: usize,
        cols: usize,
        block: (usize, usize),
        offsets: Vec<u32>,
        columns: Vec<u32>,
    ) -> Result<Self, FormatError> {
        check::matrix(rows, cols)?;
        check::block(block)?;
        check::product("slots", &[columns.len(), block.0, block.1])?;
        check::offsets(&offsets, rows.div_ceil(block.0), "columns", columns.len())?;
        check::rows_ascend(&offsets, "columns", &columns, cols.div_ceil(block.1))?;
        // SAFETY: checked above.
        Ok(unsafe { Self::new_unchecked(rows, cols, block, offsets, columns) })
    }

    /// Stores the arrays without validation.
    ///
    /// # Safety
    /// [`BsrPattern::new`] would accept the arguments.
    pub unsafe fn new_unchecked(
        rows: usize,
        cols: usize,
        block: (usize, usize),
        offsets: Vec<u32>,
        columns: Vec<u32>,
    ) -> Self {
        BsrPattern { shape: [rows, cols], block, offsets, columns }
    }

    /// Rows and columns of a block.
    pub fn block(&self) -> (usize, usize) {
        self.block
    }

    /// Number of block rows and block columns of the matrix, including edge blocks.
    pub fn grid(&self) -> (usize, usize) {
        (self.shape[0].div_ceil(self.block.0), self.shape[1].div_ceil(self.block.1))
    }
}

matrix! { BsrPattern {
    /// Start of each block row and the end of the last one, in blocks.
    offsets,
    /// Block column of every block.
    columns,
} }

impl Pattern for BsrPattern {
    fn format(&self) -> Format {
        Format::Bsr { block: self.block }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn value_shape(&self) -> Vec<usize> {
        vec![self.columns.len(), self.block.0, self.block.1]
    }

    fn arrays(&self) -> Vec<IndexArray<'_>> {
        vec![
            IndexArray::offsets(0, &self.offsets),
            IndexArray::coordinate(1, [self.columns.len()], &self.columns),
        ]
    }
}
