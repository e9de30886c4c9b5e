//! Cost model of the module `sell`: bytes of A from HBM, rows of B from shared memory. benches/NOTES.md, "sell: one to
//! a few columns".

use einsparse_kernels::families::{CHUNK_STEPS, SLICE};
use einsparse_kernels::table::Row;

use crate::cost::{Cost, LAUNCH_US, Machine, Work};

/// Time from the start of a thread block to its first products, and from the last product to C, in microseconds.
const ENDS_US: f64 = 5.0;
/// Clocks in which 32 lanes read random rows of B from shared memory, with one column and with eight. The fullest bank
/// determines them.
const ONE: f64 = 3.5;
const EIGHT: f64 = 10.6;
/// Clocks for the bytes of a slot.
const OWN: f64 = 1.2;
/// Bytes of B that a multiprocessor loads per clock.
const FILL: f64 = 40.0;
/// Ratio of slots to nonzeros if rows have different lengths.
const PADDED: f64 = 1.1;

/// Predicts a product. All warps have equal shares, so no warp waits for a long row.
pub(super) fn predict(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let tiles = work.n.div_ceil(row.columns as usize).max(1) as f64;
    let sms = f64::from(machine.multiprocessors);
    let clocks_per_us = machine.issue / 4.0 / sms / 1e6;
    // Chunks are whole, and a slice is as long as its longest row.
    let slices = (work.m as f64 / SLICE as f64).ceil();
    let steps = work.entries as f64 * PADDED / SLICE as f64 + slices * CHUNK_STEPS as f64;
    let of_row = if row.columns == 1 { ONE } else { EIGHT };
    let element = row.dtype.bytes() as f64;
    let b = work.k as f64 * f64::from(row.columns) * element;
    let gather_us = tiles * (steps * (of_row + OWN) / sms + b / FILL) / clocks_per_us;
    let slots = steps * SLICE as f64 * (2.0 + element);
    let c = (work.m * work.n) as f64 * element;
    let hbm_us = (slots + work.k as f64 * work.n as f64 * element + c) / machine.hbm * 1e6;
    let latency_us = ENDS_US * tiles;
    Cost {
        us: LAUNCH_US + latency_us + hbm_us.hypot(gather_us),
        hbm_us,
        gather_us,
        compute_us: 0.0,
        latency_us,
    }
}
