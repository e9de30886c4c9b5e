//! BlockCOO: block coordinates of dense blocks, sorted by block row, then by block column.

use crate::error::*;
use crate::pattern::matrix;
use crate::{Format, IndexArray, check};

matrix! {
    /// Pattern of a BlockCOO matrix: `C[AM[p],bm,n] += AV[p,bm,bk] * B[AK[p],bk,n]`.
    ///
    /// The shape of the values is `[blocks, bm, bk]`, row-major. Elements of edge blocks outside the shape are zero.
    BlockCooPattern,
    /// A BlockCOO matrix.
    BlockCoo(
        /// Rows and columns of a block.
        block: (usize, usize)
    ) {
        /// Block row of every block.
        block_rows: u32,
        /// Block column of every block.
        block_cols: u32,
    }
    p is Format::BlockCoo { block: p.block };
    values [p.block_cols.len(), p.block.0, p.block.1];
    arrays [
        IndexArray::coordinate(0, [p.block_rows.len()], &p.block_rows),
        IndexArray::coordinate(1, [p.block_cols.len()], &p.block_cols),
    ]
}

impl BlockCooPattern {
    /// Validates and stores the block row and the block column of every block.
    ///
    /// # Errors
    /// Returns an error if a block extent is 0, the lengths differ, a block is outside the grid, or the blocks are
    /// not strictly ascending by (row, column).
    pub fn new(
        rows: usize,
        cols: usize,
        block: (usize, usize),
        block_rows: Vec<u32>,
        block_cols: Vec<u32>,
    ) -> Result<Self> {
        check::matrix(rows, cols)?;
        check::block(block)?;
        check::product("slots", &[block_rows.len(), block.0, block.1])?;
        check::length("block_cols", block_cols.len(), block_rows.len())?;
        check::below("block_rows", &block_rows, rows.div_ceil(block.0))?;
        check::below("block_cols", &block_cols, cols.div_ceil(block.1))?;
        check::lexicographic(&["block_rows", "block_cols"], &[&block_rows, &block_cols])?;
        // SAFETY: checked above.
        Ok(unsafe { Self::new_unchecked(rows, cols, block, block_rows, block_cols) })
    }
}
