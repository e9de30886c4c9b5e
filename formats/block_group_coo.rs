//! BlockGroupCOO: groups of `group` dense blocks of one block row (arXiv 2510.17505). A block row of `occ` blocks has
//! ceil(occ / group) consecutive groups, called a run. Only the last group of a run is padded.

use crate::pattern::matrix;
use crate::{Format, FormatError, IndexArray, Pattern, Sparse, check};

/// Pattern of a BlockGroupCOO matrix: `C[AM[p],bm,n] += AV[p,q,bm,bk] * B[AK[p,q],bk,n]`.
///
/// The shape of the values is `[P, group, bm, bk]`, row-major. Padding and elements of edge blocks outside the shape
/// are zero. The groups of one block row are consecutive and called a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockGroupCooPattern {
    shape: [usize; 2],
    block: (usize, usize),
    group: usize,
    block_rows: Vec<u32>,
    block_cols: Vec<u32>,
    blocks: usize,
}

/// A BlockGroupCOO matrix.
pub type BlockGroupCoo<T> = Sparse<BlockGroupCooPattern, T>;

impl BlockGroupCooPattern {
    /// Validates and stores the block row of each of the P groups and the block columns of their `P * group` slots.
    /// [`PAD`](crate::PAD) fills the slots after the last block of a run.
    ///
    /// # Errors
    /// Returns an error if a block extent or `group` is 0, a length is wrong, a block is outside the grid, the block
    /// rows descend, the block columns of a run do not ascend, or padding is not at the end of a run.
    pub fn new(
        rows: usize,
        cols: usize,
        block: (usize, usize),
        group: usize,
        block_rows: Vec<u32>,
        block_cols: Vec<u32>,
    ) -> Result<Self, FormatError> {
        check::matrix(rows, cols)?;
        check::block(block)?;
        check::positive("group", group)?;
        check::product("slots", &[block_rows.len(), group, block.0, block.1])?;
        check::length("block_cols", block_cols.len(), block_rows.len() * group)?;
        let groups = check::Groups {
            index_name: "block_rows",
            index: &block_rows,
            index_bound: rows.div_ceil(block.0),
            names: &["block_cols"],
            others: &[&block_cols],
            bounds: &[cols.div_ceil(block.1)],
            group,
        };
        let blocks = groups.check()?;
        Ok(BlockGroupCooPattern {
            shape: [rows, cols],
            block,
            group,
            block_rows,
            block_cols,
            blocks,
        })
    }

    /// Stores the arrays without validation.
    ///
    /// # Safety
    /// [`BlockGroupCooPattern::new`] would accept the arguments.
    pub unsafe fn new_unchecked(
        rows: usize,
        cols: usize,
        block: (usize, usize),
        group: usize,
        block_rows: Vec<u32>,
        block_cols: Vec<u32>,
    ) -> Self {
        BlockGroupCooPattern {
            shape: [rows, cols],
            blocks: check::entries(&block_cols),
            block,
            group,
            block_rows,
            block_cols,
        }
    }

    /// Rows and columns of a block.
    pub fn block(&self) -> (usize, usize) {
        self.block
    }

    /// Block slots per group.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Number of groups, P.
    pub fn groups(&self) -> usize {
        self.block_rows.len()
    }

    /// Number of stored blocks without padding.
    pub fn blocks(&self) -> usize {
        self.blocks
    }
}

matrix! { BlockGroupCooPattern {
    /// Block row of every group.
    block_rows,
    /// Block column of every slot, `[P, group]`.
    block_cols,
} }

impl Pattern for BlockGroupCooPattern {
    fn format(&self) -> Format {
        Format::BlockGroupCoo { block: self.block, group: Some(self.group) }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn nnz(&self) -> usize {
        self.blocks * self.block.0 * self.block.1
    }

    fn value_shape(&self) -> Vec<usize> {
        vec![self.block_rows.len(), self.group, self.block.0, self.block.1]
    }

    fn arrays(&self) -> Vec<IndexArray<'_>> {
        vec![
            IndexArray::coordinate(0, [self.block_rows.len()], &self.block_rows),
            IndexArray::coordinate(1, [self.block_rows.len(), self.group], &self.block_cols),
        ]
    }
}
