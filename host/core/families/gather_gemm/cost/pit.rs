//! Predictions for products with dynamic micro-tiles (benches/NOTES.md, "pit: dynamic micro-tiles").

use einsparse_kernels::abi::{Dtype, WGMMA};
use einsparse_kernels::families::PitFewParams;
use einsparse_kernels::table::Row;

use crate::cost::Cost;
use crate::machine::Machine;
use crate::machine::TileTimes;

/// Fraction of the time of a dense product below which the product alone gains (benches/NOTES.md, "pit: dynamic
/// micro-tiles"). The prediction for dense kernels is a fifth too high at 4096.
const WORTH: f64 = 0.9;

/// Returns the fraction of the Tensor Core rate that tiles of this height reach if no micro-tile is empty. The fewer
/// rows share a gathered row of B, the lower it is.
fn rate(row: &Row) -> f64 {
    match (row.needs & WGMMA != 0, row.block.0.max(row.block.1)) {
        (true, 128) => 0.90,
        (true, 64) => 0.61,
        (true, _) => 0.32,
        // Slower products wait less for rows of B. Tiles of 32 rows are multiplied like those of 64. Not measured.
        (false, 32) => 0.42,
        (false, _) => 0.85,
    }
}

/// Returns whether the kernel itself finds the nonempty columns of A.
pub(crate) fn finds_columns(row: &Row) -> bool {
    row.takes::<PitFewParams>()
}

/// Start of a kernel for few rows, us: launch, read of A from HBM and of the first rows of B, reduction in a cluster.
/// Not measured.
const FEW_START_US: f64 = 6.5;

/// Returns whether the kernel gains at this share of nonempty micro-tiles. With few rows, only the required rows of B
/// are read.
pub(crate) fn is_worth_it(row: &Row, share: f64) -> bool {
    share <= if finds_columns(row) { WORTH } else { WORTH * rate(row) }
}

/// Predicts a kernel for few rows: each tile along n reads all of A, and the rows of B are read once.
fn predict_few(row: &Row, [m, k, n]: [usize; 3], share: f64, machine: &Machine) -> Cost {
    let bytes = row.dtype.bytes() as f64;
    let tiles = n.div_ceil(row.columns as usize) as f64;
    let blocks = tiles * f64::from(row.parts);
    let [m, k, n] = [m, k, n].map(|x| x as f64);
    let hbm_us = (m * k + k * n * share + m * n) * bytes / machine.hbm * 1e6;
    let gather_us = (m * k * tiles + k * n * share) * bytes / machine.l2 * 1e6;
    let padded = f64::from(row.block.0);
    let compute_us = 2.0 * padded * k * n * share / machine.mma.max(1.0) * 1e6;
    // Thread blocks that do not fill the GPU have fewer bytes in flight.
    let filled = (blocks / f64::from(machine.multiprocessors)).clamp(0.02, 1.0);
    let scan_us = m * k * tiles * bytes / machine.l2 * 1e6;
    Cost {
        us: FEW_START_US + scan_us + hbm_us.max(compute_us) / filled,
        hbm_us,
        gather_us,
        compute_us,
        latency_us: FEW_START_US,
    }
}

/// Launch between two others that each wait for the previous launch, us (benches/NOTES.md, "pit_right, pit_tf32 and
/// pit_few"). Not measured.
const STEP_US: f64 = 2.5;

/// Predicts the transpose of a matrix of elements of `bytes` bytes, us: one read and one store.
pub(crate) fn transposition_us(
    [rows, columns]: [usize; 2],
    bytes: usize,
    machine: &Machine,
) -> f64 {
    STEP_US + (2 * rows * columns * bytes) as f64 / machine.hbm * 1e6
}

/// Predicts the detection of `[m, k]`, and the product of this share of its micro-tiles with `[k, n]`.
pub(crate) fn predict(row: &Row, extents: [usize; 3], share: f64, machine: &Machine) -> Cost {
    if finds_columns(row) {
        return predict_few(row, extents, share, machine);
    }
    let height = row.block.0.max(row.block.1) as usize;
    let is_tf32 = row.dtype == Dtype::Tf32;
    let times = if is_tf32 { TileTimes::tf32(machine) } else { TileTimes::on(machine) };
    let us = times.product_us(height, extents, share, machine.multiprocessors);
    let [m, k, n] = extents.map(|x| x as f64);
    let bytes = row.dtype.bytes() as f64;
    let peak = machine.products(row) * if is_tf32 { 0.5 } else { 1.0 };
    let tops = (peak * rate(row)).max(1.0);
    Cost {
        us: us.unwrap_or(f64::INFINITY),
        hbm_us: (m * k + m * k * share + k * n + m * n) * bytes / machine.hbm * 1e6,
        gather_us: m / height as f64 * k * share * n * bytes / machine.l2 * 1e6,
        compute_us: 2.0 * m * k * n * share / tops * 1e6,
        latency_us: times.heights.get(&height).map_or(0.0, |t| t.start),
    }
}
