//! The staged family: entries multiply rows of B that wait in shared memory.

use einsparse_kernels::table::Row;

use super::{Cost, Machine, SHARED_BYTES, Work, sum};

/// Start of a thread block of the staged family: barriers, first tiles of B, first entries, and C at the end.
const STAGED_US: f64 = 7.0;
/// Adding the sums of warps that share a slice.
const STAGED_JOIN_US: f64 = 0.3;
/// What of shared memory's rate, at the clock that predictions count with, the reads of B reach.
const STAGED_SHARE: f64 = 0.97;
/// Clocks of a step of the warp with the longest row, when others are done.
const STAGED_STEP: f64 = 190.0;
/// Rows of a slice, one a lane.
const STAGED_SLICE: f64 = 32.0;

/// Every slot reads its row of B from shared memory, and every thread block writes all of its columns of B there. Rows are
/// sorted, so that slices wait for little but a longest row far above the mean.
pub(super) fn predict(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let columns = f64::from(row.columns);
    let tiles = (work.n as f64 / columns).ceil().max(1.0);
    let sms = f64::from(machine.multiprocessors);
    let us_per_clock = 1e6 / (machine.issue / 4.0 / sms);
    let mean = work.entries as f64 / work.m.max(1) as f64;
    let parts = f64::from(row.parts);
    // Chunks are whole, and each part has one to wait for.
    let steps = mean + 2.0 * parts;
    let slices = (work.m as f64 / STAGED_SLICE).ceil();
    let blocks = (slices / f64::from(row.items)).ceil() * tiles;
    let turns = blocks / sms;
    let turns = if turns < 4.0 { turns.ceil() } else { turns };
    // What a thread block takes of shared memory: no more slices than there are.
    let items = f64::from(row.items).min(slices.max(1.0));
    let read = steps * STAGED_SLICE * items * columns * 4.0;
    let written = work.k as f64 * columns * 4.0;
    let block_us = (read / STAGED_SHARE + written) / SHARED_BYTES * us_per_clock;
    let join_us = if row.parts > 1 { STAGED_JOIN_US } else { 0.0 };
    let bytes = blocks * written + work.entries as f64 * 6.0 * tiles;
    let gather_us = bytes / machine.l2 * 1e6;
    let chain_us = work.longest as f64 / parts * STAGED_STEP * us_per_clock;
    let compute_us = turns.max(1.0) * (block_us + STAGED_US + join_us);
    sum(
        work,
        machine,
        row.dtype,
        [gather_us, compute_us, chain_us + STAGED_US],
    )
}
