//! Predictions for rows that each meet the matrix that was chosen for them (`grouped`).

use einsparse_kernels::families::{GROUPED_ROWS, QUANTIZED_COLUMNS, STEP_GROUPED_GATED};
use einsparse_kernels::table::Row;

use crate::machine::Machine;

/// What a tile half as wide costs for a column: it pulls more through L2, and where many rows meet each matrix that is
/// what takes time.
const NARROW: f64 = 4.0 / 3.0;
const NARROW_FEW: f64 = 1.05;
/// Of e4m3 on both sides, where at most so many rows meet each matrix.
const NARROW_LEAST: f64 = 0.95;
const LEAST: usize = 32;
/// What a tile of 64 rows costs where many rows meet each matrix, which it reads twice; and one of 128 where few do, with
/// less of the matrices on its way.
const LOW: f64 = 1.4;
const HIGH: f64 = 1.2;
/// Columns of W of the widest tile.
const WIDEST: f64 = 256.0;

/// Whether the matrices, not the products, are what takes time: few of the rows meet each.
pub(crate) fn few_rows(rows: usize, matrices: usize) -> bool {
    rows <= matrices.saturating_mul(GROUPED_ROWS)
}

/// Columns of W that a multiprocessor goes through one after the other, so many rows by so many matrices with `n`
/// columns of C: waves of the tiles of a kernel, each as long as its share of the columns.
pub(crate) fn columns(row: &Row, [rows, matrices, n]: [usize; 3], machine: &Machine) -> f64 {
    let across = n.div_ceil(row.columns as usize) as f64;
    let (count, all) = (rows as f64, matrices as f64);
    // Matrices that any of so many rows meets, if they meet them evenly.
    let met = all * (1.0 - (-count / all).exp());
    // The last panel of each is half full, unless it is the only one.
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
