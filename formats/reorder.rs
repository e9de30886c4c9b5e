//! Rows and columns in an order that fills blocks: rows with similar columns become neighbours, so that fewer and
//! fuller blocks hold the same entries. An explicit step with an inverse; nothing in this crate takes it by itself.

mod cluster;

use crate::convert::transpose_pattern;
use crate::fill::block_fills;
use crate::{CsrPattern, FormatError, Pattern, Permutation, allocate};

/// How rows are told to be similar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The least Jaccard similarity (common block columns over all block columns, 0 to 1) of a row and the cluster
    /// that it joins.
    pub similarity: f64,
    /// Min-hashes of a row, at least 1. Rows of similarity s are compared with probability 1 - (1 - s)^hashes.
    pub hashes: usize,
}

impl Default for Options {
    /// Similarity .25, 8 hashes.
    fn default() -> Self {
        Options { similarity: 0.25, hashes: 8 }
    }
}

impl Options {
    fn check(&self) -> Result<(), FormatError> {
        let wrong = |what, found, expected: &str| FormatError::Shape {
            what,
            found,
            expected: expected.into(),
        };
        if !(0.0..=1.0).contains(&self.similarity) {
            let found = self.similarity.to_string();
            return Err(wrong("similarity", found, "0 to 1"));
        }
        if !(1..=64).contains(&self.hashes) {
            return Err(wrong("hashes", self.hashes.to_string(), "1 to 64"));
        }
        Ok(())
    }
}

/// An order of the rows with which no more blocks of `block` (rows, columns) are non-empty than before, and far fewer
/// where similar rows were scattered. The identity if none was found that has fewer.
///
/// After 1-SA (Labini, Bernaschi, Silvestri, Vella, "Blocking sparse matrices to leverage dense-specific
/// multiplication", arXiv 2202.05868, section 4): the columns of a row are quantised to block columns, rows of one
/// signature are put together, and clusters grow greedily by rows whose Jaccard similarity with the union of the
/// cluster reaches a threshold. Three things differ: clusters end at the height of a block, since the blocks here stand
/// on a grid; a row is compared with those alone that share a min-hash with the seed of the cluster and lie near it
/// when sorted by min-hashes (Broder, 1997), which takes about O(entries x hashes) instead of all pairs; and the orders
/// that come out are counted, so that the result is never worse. Deterministic, whatever the number of threads.
///
/// ```
/// use einsparse_formats::{CsrPattern, fill, reorder};
/// // Rows 0 and 2 share their columns, rows 1 and 3 theirs.
/// let pattern = CsrPattern::new(4, 4, vec![0, 2, 4, 6, 8], vec![0, 1, 2, 3, 0, 1, 2, 3])?;
/// let order = reorder::reorder_rows(&pattern, (2, 2), &reorder::Options::default())?;
/// let sorted = order.pattern_rows(&pattern)?;
/// let filled = |p| fill::block_fills(p, &[(2, 2)]).map(|fills| fills[0].fill());
/// assert_eq!((filled(&pattern)?, filled(&sorted)?), (0.5, 1.0));
/// # Ok::<(), einsparse_formats::FormatError>(())
/// ```
///
/// # Errors
/// If a side of the block is 0, the options make no sense, or there is no memory. [`FormatError::Limit`] for many more
/// rows than entries: hashes and lists of all rows take about 200 bytes for each.
pub fn reorder_rows(
    pattern: &CsrPattern,
    block: (usize, usize),
    options: &Options,
) -> Result<Permutation, FormatError> {
    options.check()?;
    fits(options, pattern, [pattern.rows(), pattern.cols().div_ceil(block.1.max(1))])?;
    let mut best = Permutation::identity(pattern.rows())?;
    let mut least = blocks(pattern, block)?;
    for order in cluster::orders(pattern, block.0, block.1, options)? {
        let found = blocks(&order.pattern_rows(pattern)?, block)?;
        if found < least {
            (best, least) = (order, found);
        }
    }
    Ok(best)
}

/// An order of the columns, as [`reorder_rows`] of the transposed pattern.
///
/// # Errors
/// As [`reorder_rows`].
pub fn reorder_columns(
    pattern: &CsrPattern,
    block: (usize, usize),
    options: &Options,
) -> Result<Permutation, FormatError> {
    options.check()?;
    fits(options, pattern, [pattern.cols(), pattern.rows().div_ceil(block.0.max(1))])?;
    reorder_rows(&transpose_pattern(pattern)?, (block.1, block.0), options)
}

/// Orders of the rows and of the columns together, never with more non-empty blocks than before.
///
/// Where the columns are scattered too, quantised signatures of rows say nothing. So besides rows, then columns, rows
/// are also clustered by their single columns first, then columns by block rows, then rows once more by block columns;
/// the way with fewer blocks is taken.
///
/// # Errors
/// As [`reorder_rows`].
pub fn reorder_both(
    pattern: &CsrPattern,
    block: (usize, usize),
    options: &Options,
) -> Result<(Permutation, Permutation), FormatError> {
    options.check()?;
    let places = pattern.rows().saturating_add(pattern.cols());
    fits(options, pattern, [places, 0])?;
    let start = Permutation::identity(pattern.rows())?;
    let mut best = columns_then_rows(pattern, block, options, start.clone())?;
    // By single columns alone no block is saved yet, and nothing is asked of the order but similar neighbours.
    let by_column = cluster::orders(pattern, block.0, 1, options)?;
    for rows in [reorder_rows(pattern, block, options)?].into_iter().chain(by_column) {
        let found = columns_then_rows(pattern, block, options, rows)?;
        if found.0 < best.0 {
            best = found;
        }
    }
    if best.0 < blocks(pattern, block)? {
        return Ok((best.1, best.2));
    }
    Ok((start, Permutation::identity(pattern.cols())?))
}

/// The columns after these rows, then the rows once more: blocks, rows, columns.
fn columns_then_rows(
    pattern: &CsrPattern,
    block: (usize, usize),
    options: &Options,
    rows: Permutation,
) -> Result<(u64, Permutation, Permutation), FormatError> {
    let by_rows = rows.pattern_rows(pattern)?;
    let columns = reorder_columns(&by_rows, block, options)?;
    let by_both = columns.pattern_columns(&by_rows)?;
    let again = reorder_rows(&by_both, block, options)?;
    let found = blocks(&again.pattern_rows(&by_both)?, block)?;
    Ok((found, rows.then(&again)?, columns))
}

/// Refuses rows or columns whose hashes, sorted lists and orders take more memory than is allowed for the matrix. A
/// value of 8 bytes is counted for each entry.
fn fits(
    options: &Options,
    pattern: &CsrPattern,
    [places, blocks]: [usize; 2],
) -> Result<(), FormatError> {
    let held = allocate::bytes_of(&pattern.arrays()) + 8 * pattern.nnz() as u64;
    // Three quarters of the limit, an eighth, and an eighth for the marks of `block_fills`.
    let each = 4 * (24 + 4 * options.hashes);
    allocate::extent("rows and columns to reorder", places as u128, each, held)?;
    allocate::extent("block columns", blocks as u128, 32, held)
}

fn blocks(pattern: &CsrPattern, block: (usize, usize)) -> Result<u64, FormatError> {
    let fills = block_fills(pattern, &[block])?;
    Ok(fills.first().map_or(0, |fill| fill.blocks))
}
