//! BSR: compressed block rows of dense blocks. The block grid is rounded up. Elements of edge blocks outside the
//! shape are zero and never read.

use crate::error::*;
use crate::pattern::matrix;
use crate::{Format, IndexArray, check};

matrix! {
    /// Pattern of a BSR matrix: `C[m',bm,n] += AV[p,bm,bk] * B[AK[p],bk,n], AP[m'] <= p < AP[m'+1]`.
    ///
    /// The shape of the values is `[blocks, bm, bk]`, row-major.
    BsrPattern,
    /// A BSR matrix.
    Bsr(
        /// Rows and columns of a block.
        block: (usize, usize)
    ) {
        /// Start of each block row and the end of the last one, in blocks.
        offsets: u32,
        /// Block column of every block.
        columns: u32,
    }
    p is Format::Bsr { block: p.block };
    values [p.columns.len(), p.block.0, p.block.1];
    arrays [
        IndexArray::offsets(0, &p.offsets),
        IndexArray::coordinate(1, [p.columns.len()], &p.columns),
    ]
}

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
    ) -> Result<Self> {
        check::matrix(rows, cols)?;
        check::block(block)?;
        check::product("slots", &[columns.len(), block.0, block.1])?;
        check::offsets(&offsets, rows.div_ceil(block.0), "columns", columns.len())?;
        check::rows_ascend(&offsets, "columns", &columns, cols.div_ceil(block.1))?;
        // SAFETY: checked above.
        Ok(unsafe { Self::new_unchecked(rows, cols, block, offsets, columns) })
    }

    /// Number of block rows and block columns of the matrix, including edge blocks.
    pub fn grid(&self) -> (usize, usize) {
        (self.shape[0].div_ceil(self.block.0), self.shape[1].div_ceil(self.block.1))
    }
}
