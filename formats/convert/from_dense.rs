//! Conversions of dense matrices to block formats. The blocks of a [`BlockChoice`] are copied completely.

use super::choice::{BlockChoice, kept_blocks};
use super::tasks::prefix_sum;
use crate::parallel;
use crate::stats::RowStats;
use crate::{
    BlockCoo, BlockCooPattern, BlockGroupCoo, BlockGroupCooPattern, Bsr, BsrPattern, Dense,
    Element, FormatError, PAD, Sparse, check,
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
) -> Result<Bsr<T>, FormatError> {
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
) -> Result<BlockCoo<T>, FormatError> {
    let (m, k) = super::matrix(dense.shape())?;
    let ([_, rows, columns], values) = kept_and_copied(dense, block, choice)?;
    Sparse::new(BlockCooPattern::new(m, k, block, rows, columns)?, values)
}

/// Converts the blocks of `choice` of a dense matrix to BlockGroupCOO. `None` selects the group size of
/// [`RowStats::group`] for the kept blocks per block row.
///
/// # Errors
/// Returns the errors of [`dense_to_bsr`], and an error if `group` is 0.
pub fn dense_to_block_group_coo<T: Element>(
    dense: &Dense<T>,
    block: (usize, usize),
    choice: BlockChoice,
    group: Option<usize>,
) -> Result<BlockGroupCoo<T>, FormatError> {
    let (offsets, kept) = kept_blocks(dense, block, choice)?;
    let counts = || offsets.windows(2).map(|w| (w[1] - w[0]) as usize);
    let group = group.unwrap_or_else(|| RowStats::from_counts(counts()).group());
    check::positive("group", group)?;
    let groups = prefix_sum("groups", counts().map(|n| n.div_ceil(group)))?;
    let first = |b: usize| groups[b] as usize * group;
    let slots = first(offsets.len() - 1);
    check::product("slots", &[slots, block.0, block.1])?;
    let mut columns = check::reserved("block_cols", slots)?;
    for (b, run) in offsets.windows(2).enumerate() {
        columns.extend_from_slice(&kept[run[0] as usize..run[1] as usize]);
        columns.resize(first(b + 1), PAD);
    }
    let group_rows: Vec<u32> = rows_of(&groups).collect();
    let rows = group_rows.iter().flat_map(|&b| std::iter::repeat_n(b, group));
    let values = gather(dense, block, &rows.collect::<Vec<_>>(), &columns)?;
    let (m, k) = super::matrix(dense.shape())?;
    let pattern = BlockGroupCooPattern::new(m, k, block, group, group_rows, columns)?;
    Sparse::new(pattern, values)
}

/// Offsets of the block rows, block row and block column of each block of `choice`, and the values of the blocks.
fn kept_and_copied<T: Element>(
    dense: &Dense<T>,
    block: (usize, usize),
    choice: BlockChoice,
) -> Result<([Vec<u32>; 3], Vec<T>), FormatError> {
    let (offsets, columns) = kept_blocks(dense, block, choice)?;
    let rows: Vec<u32> = rows_of(&offsets).collect();
    let values = gather(dense, block, &rows, &columns)?;
    Ok(([offsets, rows, columns], values))
}

/// Row of every element, for rows that start at `offsets`.
fn rows_of(offsets: &[u32]) -> impl Iterator<Item = u32> {
    let runs = (0u32..).zip(offsets.windows(2));
    runs.flat_map(|(row, w)| std::iter::repeat_n(row, (w[1] - w[0]) as usize))
}

/// Gathers the blocks at these block coordinates. Elements past the edge and padding are zero.
fn gather<T: Element>(
    dense: &Dense<T>,
    (bm, bk): (usize, usize),
    rows: &[u32],
    columns: &[u32],
) -> Result<Vec<T>, FormatError> {
    let (m, k) = super::matrix(dense.shape())?;
    let mut values = check::zeroed("values", check::product("slots", &[columns.len(), bm, bk])?)?;
    parallel::chunks(&mut values, (bm * bk).max(1), &|at, block: &mut [T]| {
        let (row, column) = (rows[at], columns[at]);
        if column == PAD {
            return;
        }
        let (first, left) = (row as usize * bm, column as usize * bk);
        let width = bk.min(k - left);
        for (line, row) in block.chunks_mut(bk).zip(first..m) {
            line[..width].copy_from_slice(&dense.values()[row * k + left..][..width]);
        }
    });
    Ok(values)
}
