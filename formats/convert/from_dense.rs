//! Conversions of dense matrices to block formats. The blocks of a [`BlockChoice`] are copied completely.

use super::block::{Groups, rows_of};
use super::choice::{BlockChoice, kept_blocks};
use crate::error::*;
use crate::parallel;
use crate::{
    BlockCoo, BlockCooPattern, BlockGroupCoo, BlockGroupCooPattern, Bsr, BsrPattern, Dense,
    Element, PAD, Sparse, check,
};

/// Converts the blocks of `choice` of a dense matrix to BSR.
///
/// # Errors
/// Returns an error if the tensor is not a matrix, a block extent is 0, the threshold is negative or NaN, the number of
/// blocks of the grid or of elements of the kept blocks exceeds u32, or allocation fails.
pub fn dense_to_bsr<T: Element>(
    dense: &Dense<T>,
    block: (usize, usize),
    choice: BlockChoice,
) -> Result<Bsr<T>> {
    let (m, k) = super::matrix(dense.shape())?;
    let ([offsets, _, columns], values) = kept_and_copied(dense, block, choice)?;
    Sparse::new(BsrPattern::new(m, k, block, offsets, columns)?, values)
}

/// Converts the blocks of `choice` of a dense matrix to BlockCOO.
///
/// # Errors
/// See [`dense_to_bsr`].
pub fn dense_to_block_coo<T: Element>(
    dense: &Dense<T>,
    block: (usize, usize),
    choice: BlockChoice,
) -> Result<BlockCoo<T>> {
    let (m, k) = super::matrix(dense.shape())?;
    let ([_, rows, columns], values) = kept_and_copied(dense, block, choice)?;
    Sparse::new(BlockCooPattern::new(m, k, block, rows, columns)?, values)
}

/// Converts the blocks of `choice` of a dense matrix to BlockGroupCOO. `None` selects the group size of
/// [`RowStats::group`](crate::stats::RowStats::group) for the kept blocks per block row.
///
/// # Errors
/// Returns the errors of [`dense_to_bsr`], and an error if `group` is 0.
pub fn dense_to_block_group_coo<T: Element>(
    dense: &Dense<T>,
    block: (usize, usize),
    choice: BlockChoice,
    group: Option<usize>,
) -> Result<BlockGroupCoo<T>> {
    let (m, k) = super::matrix(dense.shape())?;
    let (offsets, kept) = kept_blocks(dense, block, choice)?;
    let Groups { group, rows, cols, .. } = Groups::new((&offsets, &kept), block, group)?;
    let values = gather(dense, block, |slot| rows[slot / group], &cols)?;
    Sparse::new(BlockGroupCooPattern::new(m, k, block, group, rows, cols)?, values)
}

/// Offsets of the block rows, block row and block column of each block of `choice`, and the values of the blocks.
fn kept_and_copied<T: Element>(
    dense: &Dense<T>,
    block: (usize, usize),
    choice: BlockChoice,
) -> Result<([Vec<u32>; 3], Vec<T>)> {
    let (offsets, columns) = kept_blocks(dense, block, choice)?;
    let rows = rows_of(&offsets)?;
    let values = gather(dense, block, |slot| rows[slot], &columns)?;
    Ok(([offsets, rows, columns], values))
}

/// Gathers the blocks at these block coordinates. Elements past the edge and padding are zero.
fn gather<T: Element>(
    dense: &Dense<T>,
    (bm, bk): (usize, usize),
    row_of: impl Fn(usize) -> u32 + Sync,
    columns: &[u32],
) -> Result<Vec<T>> {
    let (m, k) = super::matrix(dense.shape())?;
    let mut values = check::zeroed("values", check::product("slots", &[columns.len(), bm, bk])?)?;
    parallel::chunks(&mut values, (bm * bk).max(1), &|at, block: &mut [T]| {
        let column = columns[at];
        if column == PAD {
            return;
        }
        let (first, left) = (row_of(at) as usize * bm, column as usize * bk);
        let width = bk.min(k - left);
        for (line, row) in block.chunks_mut(bk).zip(first..m) {
            line[..width].copy_from_slice(&dense.values()[row * k + left..][..width]);
        }
    });
    Ok(values)
}
