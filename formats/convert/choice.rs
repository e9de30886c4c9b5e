//! Selection of the blocks of a dense matrix that are kept. The arithmetic is bitwise defined: the GPU follows the same
//! rules and keeps the same blocks.

use rayon::prelude::*;

use crate::error::*;
use crate::parallel;
use crate::{Accumulator, Dense, Element, allocate, check, convert::matrix};

/// Rows and columns of a piece. Norms are summed piece by piece.
const PIECE: (usize, usize) = (16, 32);

/// Selection of the blocks of a dense matrix that become stored blocks.
///
/// The norm is the Frobenius norm, the root of the sum of squares. Squares are rounded and added in the accumulator
/// (f32 for f16, bf16 and f32, f64 for f64) in a fixed order. A block is divided into pieces of 16 x 32. In a piece,
/// each column is summed from top to bottom, and the columns are then added by adjacent pairs. The pieces are added row
/// by row. Elements below 1e-23 in f32 or bf16 therefore have squares of zero, which does not affect
/// [`BlockChoice::NonZero`]. A block with a NaN has the largest norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BlockChoice {
    /// Blocks with an element other than zero. NaN is nonzero, -0 is zero. The conversion is lossless.
    NonZero,
    /// Blocks whose norm is above this threshold, which must be at least 0. The square of the threshold is compared in
    /// f64 with the sum of squares.
    Norm(f64),
    /// The blocks with the largest norms of the whole matrix, at most this many. Blocks of norm zero are never kept. Of
    /// equal norms the first block, row by row, is kept. In f64, norms are equal if their squares agree in all but the
    /// last b bits, where the matrix has at most 2^b blocks.
    Top(usize),
    /// [`BlockChoice::Top`] in each block row.
    TopPerRow(usize),
}

impl BlockChoice {
    /// # Errors
    /// Returns [`FormatError::Shape`] for a threshold that is negative or NaN.
    pub fn check(&self) -> Result<()> {
        match *self {
            BlockChoice::Norm(threshold) => check::threshold("norm threshold", threshold),
            _ => Ok(()),
        }
    }
}

/// Kept blocks: the offsets of the block rows, and the block columns.
pub(super) fn kept_blocks<T: Element>(
    dense: &Dense<T>,
    block: (usize, usize),
    choice: BlockChoice,
) -> Result<(Vec<u32>, Vec<u32>)> {
    let (rows, cols) = matrix(dense.shape())?;
    check::matrix(rows, cols)?;
    check::block(block)?;
    choice.check()?;
    let (grid_rows, grid_cols) = (rows.div_ceil(block.0), cols.div_ceil(block.1));
    check::product("blocks of the grid", &[grid_rows, grid_cols])?;
    let held = size_of_val(dense.values()) as u64;
    allocate::extent("block rows", grid_rows as u128, 4, held)?;
    let scores = scores(dense, block, choice == BlockChoice::NonZero)?;
    let keep = kept(&scores, grid_cols, choice);
    let mut columns = Vec::new();
    let mut offsets = check::reserved("offsets", grid_rows + 1)?;
    offsets.push(0);
    for row in keep.chunks(grid_cols.max(1)).take(grid_rows) {
        columns.extend((0u32..).zip(row).filter(|(_, k)| **k).map(|(c, _)| c));
        offsets.push(columns.len() as u32);
    }
    // A grid without columns has no chunks, but still has block rows.
    offsets.resize(grid_rows + 1, 0);
    Ok((offsets, columns))
}

/// Score of every block of the grid, row-major: its sum of squares. With `non_zero`, the score is 0 for blocks of zeros
/// and positive for others.
fn scores<T: Element>(
    dense: &Dense<T>,
    block: (usize, usize),
    non_zero: bool,
) -> Result<Vec<T::Acc>> {
    let (rows, cols) = matrix(dense.shape())?;
    let (grid_rows, grid_cols) = (rows.div_ceil(block.0), cols.div_ceil(block.1));
    let mut scores = check::zeroed("scores", grid_rows * grid_cols)?;
    parallel::chunks(&mut scores, grid_cols.max(1), &|block_row, scores: &mut [T::Acc]| {
        let mut sums = vec![T::Acc::ZERO; cols];
        let last = rows.min((block_row + 1).saturating_mul(block.0));
        for first in (block_row * block.0..last).step_by(PIECE.0) {
            sums.fill(T::Acc::ZERO);
            for row in first..last.min(first + PIECE.0) {
                let line = &dense.values()[row * cols..][..cols];
                for (sum, &v) in sums.iter_mut().zip(line) {
                    *sum += square(v, non_zero);
                }
            }
            for (score, sums) in scores.iter_mut().zip(sums.chunks(block.1)) {
                for piece in sums.chunks(PIECE.1) {
                    *score += by_pairs(piece);
                }
            }
        }
    });
    Ok(scores)
}

fn square<T: Element>(v: T, non_zero: bool) -> T::Acc {
    match non_zero {
        false => v.to_acc() * v.to_acc(),
        true if v != T::ZERO => T::Acc::ONE,
        true => T::Acc::ZERO,
    }
}

/// Adds adjacent columns, then adjacent sums, and so on. Fewer than 32 columns are extended by zeros.
fn by_pairs<A: Accumulator>(columns: &[A]) -> A {
    let mut sums = [A::ZERO; PIECE.1];
    sums[..columns.len()].copy_from_slice(columns);
    let mut len = PIECE.1;
    while len > 1 {
        len /= 2;
        for i in 0..len {
            sums[i] = sums[2 * i] + sums[2 * i + 1];
        }
    }
    sums[0]
}

fn kept<A: Accumulator>(scores: &[A], columns: usize, choice: BlockChoice) -> Vec<bool> {
    match choice {
        BlockChoice::NonZero => scores.iter().map(|s| *s != A::ZERO).collect(),
        BlockChoice::Norm(threshold) => {
            let above = |s: &A| s.to_f64() > threshold * threshold || s.to_f64().is_nan();
            scores.iter().map(above).collect()
        }
        BlockChoice::Top(count) => largest(scores, count),
        BlockChoice::TopPerRow(count) => {
            let rows = scores.chunks(columns.max(1));
            rows.flat_map(|row| largest(row, count)).collect()
        }
    }
}

/// Marks the `count` largest scores above zero. Of equal scores the first is marked.
fn largest<A: Accumulator>(scores: &[A], count: usize) -> Vec<bool> {
    let mut keep = vec![false; scores.len()];
    let bits = usize::BITS - scores.len().saturating_sub(1).leading_zeros();
    let rank = |&p: &usize| {
        let dropped = if size_of::<A>() == 8 { bits } else { 0 };
        (std::cmp::Reverse(ordered(scores[p]) >> dropped), p)
    };
    let mut order: Vec<usize> = (0..scores.len()).filter(|&p| ordered(scores[p]) > 0).collect();
    order.par_sort_unstable_by_key(rank);
    for &p in order.iter().take(count) {
        keep[p] = true;
    }
    keep
}

/// Converts a score, which is never negative, to an integer of the same order. NaN is the largest.
fn ordered<A: Accumulator>(score: A) -> u64 {
    match score.to_f64() {
        s if s.is_nan() => u64::MAX,
        s => s.to_bits(),
    }
}
