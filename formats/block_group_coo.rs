//! BlockGroupCOO: groups of `group` dense blocks of one block row (arXiv 2510.17505). A block row of `occ` blocks has
//! ceil(occ / group) consecutive groups, called a run. Only the last group of a run is padded.

use crate::error::*;
use crate::pattern::matrix;
use crate::{Format, IndexArray, check};

matrix! {
    /// Pattern of a BlockGroupCOO matrix: `C[AM[p],bm,n] += AV[p,q,bm,bk] * B[AK[p,q],bk,n]`.
    ///
    /// The shape of the values is `[P, group, bm, bk]`, row-major. Padding and elements of edge blocks outside the shape
    /// are zero. The groups of one block row are consecutive and called a run.
    BlockGroupCooPattern,
    /// A BlockGroupCOO matrix.
    BlockGroupCoo(
        /// Rows and columns of a block.
        block: (usize, usize),
        /// Block slots per group.
        group: usize
    ) {
        /// Block row of every group.
        block_rows: u32,
        /// Block column of every slot, `[P, group]`.
        block_cols: u32,
    }
    p is Format::BlockGroupCoo { block: p.block, group: Some(p.group) };
    stores blocks: check::entries(&p.block_cols);
    nnz p.blocks * p.block.0 * p.block.1;
    values [p.block_rows.len(), p.group, p.block.0, p.block.1];
    arrays [
        IndexArray::coordinate(0, [p.block_rows.len()], &p.block_rows),
        IndexArray::coordinate(1, [p.block_rows.len(), p.group], &p.block_cols),
    ]
}

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
    ) -> Result<Self> {
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

    /// Number of groups, P.
    pub fn groups(&self) -> usize {
        self.block_rows.len()
    }

    /// Number of stored blocks without padding.
    pub fn blocks(&self) -> usize {
        self.blocks
    }
}
