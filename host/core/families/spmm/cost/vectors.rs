//! Cost model of the module `vectors`: windows of eight rows, one after another. Measured on one
//! H200: benches/NOTES.md.

use einsparse_kernels::table::Row;

use crate::cost::{Cost, Machine, Work, sum};

/// Time of a window of the module `vectors` without its steps, in microseconds: head, first records, first rows of B,
/// and rows of C.
const WINDOW_US: f64 = 1.6;
/// Time of a step if few warps work, and extra time if all do, in microseconds.
const VECTOR_STEP_US: f64 = 0.5;
const CROWDED_STEP_US: f64 = 0.55;

/// Factor and extra microseconds for 16-bit elements.
const HALVES: (f64, f64) = (1.08, 0.9);

/// Factor for a step that copies rows of B byte by byte.
const BYTEWISE_STEP: f64 = 6.0;

/// Predicts a product. Warps process windows one after another, step by step. Every vector's row of B is read from L2.
pub(super) fn predict(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let (steps, longest) = (work.steps.0 as f64, work.steps.1 as f64);
    let element = row.dtype.bytes() as f64;
    let tiles = work.n.div_ceil(row.columns as usize).max(1) as f64;
    let (parts, windows) = (f64::from(row.parts), (work.m as f64 / 8.0).ceil());
    let b = (work.k * work.n) as f64 * element;
    let hit = (0.6 * machine.l2_bytes as f64 / b.max(1.0)).min(1.0);
    let bytes = 16.0 * steps * (work.n as f64 * element / 32.0).ceil() * 32.0;
    // If rows share columns, so do windows that run concurrently. A B that does not fit in L2 then streams through it
    // once.
    let alone = (16.0 * steps / (work.entries as f64).max(1.0)).min(1.0);
    let missing = (1.0 - hit) * (alone * bytes + (1.0 - alone) * b);
    let gather_us = (bytes / machine.l2 + missing / machine.hbm) * 1e6;
    let resident = f64::from(machine.multiprocessors * row.min_blocks * row.threads / 32);
    let waves = windows * tiles * parts / resident;
    let bytewise = if row.vector == 1 { BYTEWISE_STEP } else { 1.0 };
    let step_us = bytewise * (VECTOR_STEP_US + CROWDED_STEP_US * waves.min(1.0));
    let uneven = if row.parts > 1 { 0.5 } else { 0.0 };
    let mean_us = WINDOW_US + (steps / windows.max(1.0) / parts + uneven) * step_us;
    let longest_us = WINDOW_US + (longest / parts).ceil() * step_us;
    let latency_us = longest_us.max(waves * mean_us);
    let mut cost = sum(work, machine, row.dtype, [gather_us, 0.0, latency_us]);
    if element == 2.0 {
        cost.us = cost.us * HALVES.0 + HALVES.1;
    }
    cost
}
