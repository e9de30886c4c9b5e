//! Predictions for rows that each meet the matrix that was chosen for them (`grouped`).

use einsparse_kernels::families::GROUPED_ROWS;
use einsparse_kernels::table::Row;

use crate::machine::Machine;

/// What narrow tiles cost beside wide ones for a column: they pull more through L2, and where many rows meet each
/// matrix that is what takes time.
const NARROW: f64 = 4.0 / 3.0;
const NARROW_FEW: f64 = 1.05;

/// Whether the matrices, not the products, are what takes time: few of the rows meet each.
pub(crate) fn few_rows(rows: usize, matrices: usize) -> bool {
    rows <= matrices.saturating_mul(GROUPED_ROWS)
}

/// Columns that a multiprocessor computes one after the other, so many rows by so many matrices of `n` columns: waves
/// of the tiles of a kernel, each as long as its share of the columns.
pub(crate) fn columns(row: &Row, [rows, matrices, n]: [usize; 3], machine: &Machine) -> f64 {
    let across = n.div_ceil(row.columns as usize) as f64;
    // The last panel of each matrix is half full.
    let panels = rows as f64 / GROUPED_ROWS as f64 + 0.5 * rows.min(matrices) as f64;
    let waves = (panels * across / f64::from(machine.multiprocessors)).ceil();
    let narrow = match (row.columns < 256, few_rows(rows, matrices)) {
        (false, _) => 1.0,
        (true, true) => NARROW_FEW,
        (true, false) => NARROW,
    };
    waves * f64::from(row.columns) * narrow
}
