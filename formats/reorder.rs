//! Reordering of rows and columns into denser blocks. Rows with similar columns become neighbors, so that fewer and
//! fuller blocks contain the same entries. Reordering is an explicit step with an inverse; no other function of this
//! crate applies it.

mod cluster;

use crate::convert::transpose_pattern;
use crate::error::*;
use crate::fill::block_fills;
use crate::{CsrPattern, Pattern, Permutation, allocate, check};

/// Parameters of the similarity of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Minimum Jaccard similarity (common block columns over all block columns, 0 to 1) of a row and the cluster that
    /// it joins.
    pub similarity: f64,
    /// Number of min-hashes per row, 1 to 64. Rows of similarity s are compared with probability 1 - (1 - s)^hashes.
    pub hashes: usize,
}

impl Default for Options {
    /// Similarity .25, 8 hashes.
    fn default() -> Self {
        Options { similarity: 0.25, hashes: 8 }
    }
}

impl Options {
    fn check(&self) -> Result<()> {
        check::fraction("similarity", self.similarity)?;
        match self.hashes {
            1..=64 => Ok(()),
            _ => Err(check::shape("hashes", self.hashes, "1 to 64")),
        }
    }
}

/// Returns an order of the rows that reduces the number of non-empty blocks of `block` (rows, columns). The number is
/// much lower if similar rows were scattered, and never higher than before. If no order has fewer blocks, the result is
/// the identity.
///
/// The method follows 1-SA (Labini, Bernaschi, Silvestri, Vella, "Blocking sparse matrices to leverage dense-specific
/// multiplication", arXiv 2202.05868, section 4). It quantizes the columns of a row to block columns and groups rows of
/// equal signature. Clusters grow greedily by rows whose Jaccard similarity with the union of the cluster reaches a
/// threshold. It differs from 1-SA in three ways:
/// - Clusters end at the height of a block, because blocks are aligned to a grid.
/// - A row is compared only with rows that share a min-hash with the seed of the cluster and are near it when sorted by
///   min-hashes (Broder, 1997). The cost is about O(entries x hashes) instead of all pairs.
/// - The blocks of the resulting orders are counted, so the result is never worse than the input.
///
/// The result is deterministic for any number of threads.
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
/// Returns an error if a block extent is 0, the options are invalid, or allocation fails. Returns
/// [`FormatError::Limit`] if there are many more rows than entries: hashes and lists need about 200 bytes per row.
pub fn reorder_rows(
    pattern: &CsrPattern,
    block: (usize, usize),
    options: &Options,
) -> Result<Permutation> {
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

/// Returns an order of the columns: [`reorder_rows`] of the transposed pattern.
pub fn reorder_columns(
    pattern: &CsrPattern,
    block: (usize, usize),
    options: &Options,
) -> Result<Permutation> {
    options.check()?;
    fits(options, pattern, [pattern.cols(), pattern.rows().div_ceil(block.0.max(1))])?;
    reorder_rows(&transpose_pattern(pattern)?, (block.1, block.0), options)
}

/// Returns orders of the rows and of the columns. The number of non-empty blocks is never higher than before.
///
/// If the columns are scattered too, quantized signatures of rows contain no information. Three row orders are
/// therefore tried: the identity, that of [`reorder_rows`], and clusters by individual columns. For each, the columns
/// and then the rows again are ordered. The result with the fewest blocks is returned.
pub fn reorder_both(
    pattern: &CsrPattern,
    block: (usize, usize),
    options: &Options,
) -> Result<(Permutation, Permutation)> {
    options.check()?;
    let places = pattern.rows().saturating_add(pattern.cols());
    fits(options, pattern, [places, 0])?;
    let start = Permutation::identity(pattern.rows())?;
    let mut best = columns_then_rows(pattern, block, options, start.clone())?;
    // Clustering by individual columns saves no blocks yet. It only has to make similar rows neighbors.
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

/// Orders the columns for the given row order, then the rows again. Returns the number of blocks, the rows and the
/// columns.
fn columns_then_rows(
    pattern: &CsrPattern,
    block: (usize, usize),
    options: &Options,
    rows: Permutation,
) -> Result<(u64, Permutation, Permutation)> {
    let by_rows = rows.pattern_rows(pattern)?;
    let columns = reorder_columns(&by_rows, block, options)?;
    let by_both = columns.pattern_columns(&by_rows)?;
    let again = reorder_rows(&by_both, block, options)?;
    let found = blocks(&again.pattern_rows(&by_both)?, block)?;
    Ok((found, rows.then(&again)?, columns))
}

/// Validates that the hashes, sorted lists and orders of rows or columns fit the memory limit for the matrix. The size
/// of the matrix includes a value of 8 bytes per entry.
fn fits(options: &Options, pattern: &CsrPattern, [places, blocks]: [usize; 2]) -> Result<()> {
    let held = allocate::bytes_of(&pattern.arrays()) + 8 * pattern.nnz() as u64;
    // Three quarters of the limit, an eighth, and an eighth for the marks of `block_fills`.
    let each = 4 * (24 + 4 * options.hashes);
    allocate::extent("rows and columns to reorder", places as u128, each, held)?;
    allocate::extent("block columns", blocks as u128, 32, held)
}

fn blocks(pattern: &CsrPattern, block: (usize, usize)) -> Result<u64> {
    let fills = block_fills(pattern, &[block])?;
    Ok(fills.first().map_or(0, |fill| fill.blocks))
}
