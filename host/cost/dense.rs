//! The dense family: tiles and their parts along k over the multiprocessors.

use einsparse_kernels::abi::PANEL_BYTES;
use einsparse_kernels::table::Row;

use super::{Cost, Machine, Work, sum};

/// From the launch to the first stage, and sending C.
const DENSE_START_US: f64 = 1.6;
/// Joining the sums of a cluster, and its start.
const DENSE_JOIN_US: f64 = 0.8;

/// A multiprocessor takes a stage at L2's rate, and multiplies it at its share of the ceiling.
pub(super) fn predict(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let (rows, columns) = (f64::from(row.block.0), f64::from(row.columns));
    let (cut, depth) = (f64::from(row.parts), f64::from(row.block.1));
    let tiles = (work.m as f64 / rows).ceil() * (work.n as f64 / columns).ceil().max(1.0);
    let sms = f64::from(machine.multiprocessors);
    let stages = (work.k as f64 / depth / cut).ceil();
    let turns = (tiles * cut / sms).ceil().max(1.0);
    let stage_bytes = (rows + columns) * PANEL_BYTES as f64;
    let flops = 2.0 * rows * columns * depth;
    let rate = machine.wgmma * if work_is_wide(row) { 0.5 } else { 1.0 };
    let gather_us = turns * stages * stage_bytes / (machine.l2 / sms) * 1e6;
    let compute_us = turns * stages * flops / (rate / sms) * 1e6;
    let join_us = if row.parts > 1 { DENSE_JOIN_US } else { 0.0 };
    sum(
        work,
        machine,
        row.dtype,
        [gather_us, compute_us, DENSE_START_US + join_us],
    )
}

fn work_is_wide(row: &Row) -> bool {
    row.dtype.bytes() == 4
}
