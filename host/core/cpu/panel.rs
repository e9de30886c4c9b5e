//! Loops of the SpMM fast path: tiles of columns, rows of a piece, nonzeros of a row.
//!
//! Each output element sums its nonzeros in ascending order, long rows in runs, without fused multiply-add. The order
//! does not depend on the tile or the instruction set, so results have the same bits on every machine.

use std::ops::Range;

use einsparse_formats::Accumulator;

use super::cascade::{RUN, in_runs};
use super::rows::Rows;
use super::spmm::Finish;

/// One SpMM with operands widened to accumulators.
pub(super) struct Task<'t, A> {
    pub rows: &'t Rows<'t>,
    pub values: &'t [A],
    /// Rows and columns of a block; (1, 1) for unstructured nonzeros.
    pub block: (usize, usize),
    /// Rows and columns of the sparse matrix.
    pub shape: (usize, usize),
    pub scale: A,
    pub b: &'t [A],
    pub b_stride: usize,
    pub columns: usize,
    pub finish: &'t Finish<A>,
}

/// Rows of a block that are summed together, so that each element of the dense operand is loaded once for all of them.
const PANEL: usize = 4;

/// Mean number of nonzeros per row below which row after row is processed. Above it, a tile of columns is processed for
/// all rows of a piece, so that its slice of the dense operand stays in L2.
const SHORT_ROW: usize = 24;

/// Processes one piece: (block) rows `piece`, with output `out` and output row stride `pitch`.
pub(super) fn row_tiles<A: Accumulator>(
    task: &Task<'_, A>,
    piece: Range<usize>,
    pitch: usize,
    out: &mut [A],
) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has AVX-512F, as tested above.
        return unsafe { row_tiles_avx512(task, piece, pitch, out) };
    } else if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, as tested above.
        return unsafe { row_tiles_avx2(task, piece, pitch, out) };
    }
    in_order::<A, 32>(task, piece, pitch, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn row_tiles_avx512<A: Accumulator>(
    task: &Task<'_, A>,
    piece: Range<usize>,
    pitch: usize,
    out: &mut [A],
) {
    in_order::<A, 128>(task, piece, pitch, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn row_tiles_avx2<A: Accumulator>(
    task: &Task<'_, A>,
    piece: Range<usize>,
    pitch: usize,
    out: &mut [A],
) {
    in_order::<A, 64>(task, piece, pitch, out);
}

#[inline(always)]
fn in_order<A: Accumulator, const WIDEST: usize>(
    task: &Task<'_, A>,
    piece: Range<usize>,
    pitch: usize,
    out: &mut [A],
) {
    // Rows may be stored in any order, so the spans are summed.
    let spans = task.rows.spans[piece.clone()].iter();
    let slots: usize = spans.map(|(start, end)| (end - start) as usize).sum();
    if task.block != (1, 1) || slots >= SHORT_ROW * piece.len() {
        return tiles::<A, WIDEST>(task, &piece, pitch, out);
    }
    for (i, row) in piece.enumerate() {
        tiles::<A, WIDEST>(task, &(row..row + 1), pitch, &mut out[i * pitch..]);
    }
}

/// Processes tiles of columns, the widest first. `WIDEST`: columns that fit in the registers of the instruction set.
#[inline(always)]
fn tiles<A: Accumulator, const WIDEST: usize>(
    task: &Task<'_, A>,
    piece: &Range<usize>,
    pitch: usize,
    out: &mut [A],
) {
    let mut col = 0;
    if task.block == (1, 1) {
        macro_rules! widths {
            ($($width:literal)*) => {
                $(while $width <= WIDEST && task.columns - col >= $width {
                    entry_tile::<A, $width>(task, piece, col, pitch, out);
                    col += $width;
                })*
            };
        }
        widths!(128 64 32 16 8 4 2 1);
    } else {
        macro_rules! widths {
            ($($width:literal)*) => {
                $(while 2 * $width <= WIDEST && task.columns - col >= $width {
                    block_tile::<A, $width>(task, piece, col, pitch, out);
                    col += $width;
                })*
            };
        }
        widths!(64 32 16 8 4 2 1);
    }
}

/// Processes columns `col..col + W` of the rows of a piece, one nonzero at a time.
#[inline(always)]
fn entry_tile<A: Accumulator, const W: usize>(
    task: &Task<'_, A>,
    piece: &Range<usize>,
    col: usize,
    pitch: usize,
    out: &mut [A],
) {
    for row in piece.clone() {
        let (start, end) = task.rows.spans[row];
        let [sums] = in_runs(start as usize..end as usize, RUN, |slots| {
            let entries = task.rows.columns[slots.clone()].iter().zip(&task.values[slots]);
            let mut sums = [A::ZERO; W];
            for (&column, &value) in entries {
                let from = column as usize * task.b_stride + col;
                add(&mut sums, task.scale * value, &task.b[from..from + W]);
            }
            [sums]
        });
        let at = (row - piece.start) * pitch + col;
        task.finish.store(row, col, sums, &mut out[at..at + W]);
    }
}

#[inline(always)]
fn add<A: Accumulator, const W: usize>(sums: &mut [A; W], a: A, b: &[A]) {
    for (sum, &b) in sums.iter_mut().zip(b) {
        *sum += a * b;
    }
}

/// Processes columns `col..col + W` of the block rows of a piece.
#[inline(always)]
fn block_tile<A: Accumulator, const W: usize>(
    task: &Task<'_, A>,
    piece: &Range<usize>,
    col: usize,
    pitch: usize,
    out: &mut [A],
) {
    let bm = task.block.0;
    for block_row in piece.clone() {
        let rows = bm.min(task.shape.0 - block_row * bm);
        let out = &mut out[(block_row - piece.start) * bm * pitch..];
        let mut row = 0;
        while rows - row >= PANEL {
            panel::<A, PANEL, W>(task, block_row, row, col, pitch, out);
            row += PANEL;
        }
        while row < rows {
            panel::<A, 1, W>(task, block_row, row, col, pitch, out);
            row += 1;
        }
    }
}

/// Processes `R` rows of one block row.
#[inline(always)]
fn panel<A: Accumulator, const R: usize, const W: usize>(
    task: &Task<'_, A>,
    block_row: usize,
    row: usize,
    col: usize,
    pitch: usize,
    out: &mut [A],
) {
    let (bm, bk) = task.block;
    let (start, end) = task.rows.spans[block_row];
    // A run consists of whole blocks. If a block has more than `RUN` columns, its columns are split into runs.
    let columns = RUN.min(bk);
    let (pieces, blocks) = (bk.div_ceil(columns), RUN / columns);
    let sums = in_runs(start as usize * pieces..end as usize * pieces, blocks, |run| {
        let mut sums = [[A::ZERO; W]; R];
        for piece in run {
            let (slot, from) = match pieces {
                1 => (piece, 0),
                _ => (piece / pieces, piece % pieces * columns),
            };
            let first = task.rows.columns[slot] as usize * bk;
            let values = &task.values[slot * bm * bk + row * bk..][..R * bk];
            // Columns of an edge block outside the matrix are skipped.
            for k in from..bk.min(from + columns).min(task.shape.1 - first) {
                let from = (first + k) * task.b_stride + col;
                let b = &task.b[from..from + W];
                let a: [A; R] = std::array::from_fn(|r| values[r * bk + k]);
                // Zeros pad a block. They are skipped because B may contain a NaN in that row.
                for r in 0..R {
                    if a[r] != A::ZERO {
                        add(&mut sums[r], task.scale * a[r], b);
                    }
                }
            }
        }
        sums
    });
    for (r, sums) in sums.into_iter().enumerate() {
        let at = (row + r) * pitch + col;
        task.finish.store(block_row * bm + row + r, col, sums, &mut out[at..at + W]);
    }
}
