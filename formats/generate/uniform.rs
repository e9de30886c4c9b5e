//! Unstructured patterns and simple structured ones: uniform, a fixed number of entries per row, blocks, a band.

use super::random::{Purpose, Stream, by_rows};
use crate::error::*;
use crate::{BsrPattern, CsrPattern, allocate, check};

/// Returns a pattern in which each element of the matrix is an entry with probability `density`, independently.
///
/// # Errors
/// Returns [`FormatError::Shape`] for a density outside 0 to 1, and [`FormatError::Overflow`] for more than 2^32 - 1
/// entries.
pub fn uniform(rows: usize, cols: usize, density: f64, seed: u64) -> Result<CsrPattern> {
    check::fraction("density", density)?;
    let expected = (rows as f64 * cols as f64 * density) as u128;
    let expected = check::fits("expected entries", expected)? as u64;
    // The gap to the next entry has a geometric distribution: floor(ln u / ln(1 - density)).
    let scale = 1.0 / libm::log1p(-density);
    let drawn = (seed, Purpose::Uniform);
    by_rows(rows, cols, expected, drawn, |_, stream, columns| {
        if density == 0.0 {
            return;
        }
        let mut at = (libm::log(stream.unit()) * scale).floor();
        while at < cols as f64 {
            columns.push(at as u32);
            at += 1.0 + (libm::log(stream.unit()) * scale).floor();
        }
    })
}

/// Returns a pattern with `per_row` distinct columns in each row. All choices are equally likely.
///
/// # Errors
/// Returns [`FormatError::Shape`] if `per_row > cols`, and [`FormatError::Overflow`] for more than 2^32 - 1 entries.
pub fn uniform_rows(rows: usize, cols: usize, per_row: usize, seed: u64) -> Result<CsrPattern> {
    if per_row > cols {
        let expected = format!("at most {cols}, the columns");
        return Err(check::shape("entries of a row", per_row, expected));
    }
    let entries = check::fits("entries", rows as u128 * per_row as u128)? as u64;
    let drawn = (seed, Purpose::UniformRows);
    by_rows(rows, cols, entries, drawn, |_, stream, columns| {
        stream.distinct(per_row, cols, columns)
    })
}

/// Returns a square band of `entries` diagonals around the main diagonal, clipped at the corners. If `entries` is even,
/// one more diagonal is below the main diagonal than above it.
///
/// # Errors
/// Returns [`FormatError::Overflow`] for more than 2^32 - 1 entries.
pub fn banded(rows: usize, entries: usize) -> Result<CsrPattern> {
    let all = check::fits("entries", rows as u128 * entries.min(rows) as u128)? as u64;
    let (below, above) = (entries / 2, entries.div_ceil(2));
    let drawn = (0, Purpose::Uniform);
    by_rows(rows, rows, all, drawn, |row, _, columns| {
        columns.extend(row.saturating_sub(below) as u32..rows.min(row + above) as u32);
    })
}

/// Returns a pattern of `round(density * grid)` random blocks of the grid. All choices are equally likely.
///
/// # Errors
/// Returns [`FormatError::Shape`] for a density outside 0 to 1 or an empty block, and [`FormatError::Overflow`] if a
/// count exceeds the index type.
pub fn blocks(
    rows: usize,
    cols: usize,
    block: (usize, usize),
    density: f64,
    seed: u64,
) -> Result<BsrPattern> {
    check::fraction("density", density)?;
    check::block(block)?;
    let (height, width) = (rows.div_ceil(block.0), cols.div_ceil(block.1));
    let grid = check::product("blocks of the grid", &[height, width])?;
    let mut chosen = Vec::new();
    let count = (grid as f64 * density).round() as usize;
    Stream::new(seed, Purpose::Blocks, 0).distinct(count, grid, &mut chosen);
    allocate::extent("block rows", height as u128, 4, 8 * count as u64)?;
    let mut offsets = check::reserved("offsets", height + 1)?;
    offsets.extend(
        (0..=height).map(|row| chosen.partition_point(|at| (*at as usize) < row * width) as u32),
    );
    let columns = chosen.iter().map(|at| *at % width as u32).collect();
    BsrPattern::new(rows, cols, block, offsets, columns)
}
