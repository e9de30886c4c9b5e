//! Predictions for products of rows with the matrix chosen for each (`grouped`).

use einsparse_kernels::families::{GROUPED_ROWS, QUANTIZED_COLUMNS, STEP_GROUPED_GATED};
use einsparse_kernels::table::Row;

use crate::machine::Machine;

/// Cost factor per column of a tile of half the width, with many and with few rows per matrix. It reads more through
/// L2, which is the bottleneck with many rows.
const NARROW: f64 = 4.0 / 3.0;
const NARROW_FEW: f64 = 1.05;
/// The factor for e4m3 on both sides, with at most this many rows per matrix.
const NARROW_LEAST: f64 = 0.95;
const LEAST: usize = 32;
/// Cost factor of a tile of 64 rows with many rows per matrix, which it reads twice. Cost factor of a tile of 128 rows
/// with few, because fewer bytes of the matrices are in flight.
const LOW: f64 = 1.4;
const HIGH: f64 = 1.2;
/// Columns of W of the widest tile.
const WIDEST: f64 = 256.0;

/// Returns whether the matrices, not the products, determine the time: few rows per matrix.
pub(crate) fn few_rows(rows: usize, matrices: usize) -> bool {
    rows <= matrices.saturating_mul(GROUPED_ROWS)
}

/// Returns the columns of W that a multiprocessor processes in sequence, for `rows` rows, `matrices` matrices and `n`
/// columns of C. It is the number of waves of a kernel's tiles, times the columns of a tile, times factors.
pub(crate) fn columns(row: &Row, [rows, matrices, n]: [usize; 3], machine: &Machine) -> f64 {
    let across = n.div_ceil(row.columns as usize) as f64;
    let (count, all) = (rows as f64, matrices as f64);
    // Expected number of matrices with rows, if rows are distributed evenly.
    let met = all * (1.0 - (-count / all).exp());
    // The last row block of each matrix is half full on average, unless it is the only one.
    let panels = met.max(count / GROUPED_ROWS as f64 + 0.5 * met);
    let waves = (panels * across / f64::from(machine.multiprocessors)).ceil();
    let gates = if row.step == STEP_GROUPED_GATED { 2.0 } else { 1.0 };
    let wide = gates * f64::from(row.columns);
    let narrow: f64 = match few_rows(rows, matrices) {
        true if row.order == QUANTIZED_COLUMNS && rows <= matrices.saturating_mul(LEAST) => {
            NARROW_LEAST
        }
        true => NARROW_FEW,
        false => NARROW,
    };
    let is_low = (row.block.0 as usize) < GROUPED_ROWS;
    let high = match (rows <= matrices.saturating_mul(GROUPED_ROWS / 2), is_low) {
        (true, false) => HIGH,
        (false, true) => LOW,
        _ => 1.0,
    };
    waves * wide * high * narrow.powf((WIDEST / wide).log2())
}
