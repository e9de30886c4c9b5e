//! BlockCOO: block coordinates of dense blocks, sorted by block row, then by block column.

use crate::pattern::matrix;
use crate::{Format, FormatError, IndexArray, Pattern, Sparse, check};

/// Pattern of a BlockCOO matrix: `C[AM[p],bm,n] += AV[p,bm,bk] * B[AK[p],bk,n]`.
///
/// The shape of the values is `[blocks, bm, bk]`, row-major. Elements of edge blocks outside the shape are zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockCooPattern {
    shape: [usize; 2],
    block: (usize, usize),
    block_rows: Vec<u32>,
    block_cols: Vec<u32>,
}

/// A BlockCOO matrix.
pub type BlockCoo<T> = Sparse<BlockCooPattern, T>;

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
    ) -> Result<Self, FormatError> {
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

    /// Stores the arrays without validation.
    ///
    /// # Safety
    /// [`BlockCooPattern::new`] would accept the arguments.
    pub unsafe fn new_unchecked(
        rows: usize,
        cols: usize,
        block: (usize, usize),
        block_rows: Vec<u32>,
        block_cols: Vec<u32>,
    ) -> Self {
        BlockCooPattern { shape: [rows, cols], block, block_rows, block_cols }
    }

    /// Rows and columns of a block.
    pub fn block(&self) -> (usize, usize) {
        self.block
    }
}

matrix! { BlockCooPattern {
    /// Block row of every block.
    block_rows,
    /// Block column of every block.
    block_cols,
} }

impl Pattern for BlockCooPattern {
    fn format(&self) -> Format {
        Format::BlockCoo { block: self.block }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn value_shape(&self) -> Vec<usize> {
        vec![self.block_cols.len(), self.block.0, self.block.1]
    }

    fn arrays(&self) -> Vec<IndexArray<'_>> {
        vec![
            IndexArray::coordinate(0, [self.block_rows.len()], &self.block_rows),
            IndexArray::coordinate(1, [self.block_cols.len()], &self.block_cols),
        ]
    }
}
