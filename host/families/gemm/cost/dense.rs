//! The dense family: tiles, and their parts along k, dealt over the multiprocessors. Measured on one H200,
//! benches/NOTES.md, "dense: small dense products".

use einsparse_kernels::abi::PANEL_BYTES;
use einsparse_kernels::table::Row;

use crate::cost::{Cost, LAUNCH_US, Machine, Work};

/// From the start of a thread block to its first stage, at whose end others may follow it.
const FIRST_US: f64 = 1.9;
/// Sending 64 x 64 elements of C.
const SEND_US: f64 = 0.3;
/// Joining the sums of a cluster, and those of 64 x 64 elements.
const JOIN_US: f64 = 0.3;
const JOIN_TILE_US: f64 = 0.1;
/// Fewer columns than this take longer than the sum below says, not explained: 8192 x 2048 times 8 columns 27.6 us, 2.3
/// times it.
const FEW_COLUMNS: usize = 32;
const FEW: f64 = 2.0;
/// What copies of whole tiles reach beside the gathers that L2's rate is counted in.
const TILES_L2: f64 = 1.5;

/// Multiprocessors that clusters of so many find room on: they keep to a part of the GPU, the ends of which are left
/// over.
fn reach(parts: u32, sms: f64) -> f64 {
    let share = match parts {
        1 | 2 => 1.0,
        4 => 0.93,
        _ => 0.86,
    };
    let parts = f64::from(parts);
    (sms * share / parts).floor().max(1.0) * parts
}

/// Thread blocks take turns; each copies its stages and multiplies them, which overlaps, between a beginning and an
/// end, which do not.
pub(super) fn predict(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let rates = Rates {
        hbm_us: work.compulsory_bytes(row.dtype) / machine.hbm * 1e6,
        l2: TILES_L2,
        followed: false,
    };
    of_tiles(row, [work.m, work.k, work.n], rates, machine)
}

/// What the bytes of a product take.
pub(crate) struct Rates {
    /// Operands over HBM.
    pub hbm_us: f64,
    /// What copies of tiles reach, in L2's rates.
    pub l2: f64,
    /// A thread block goes on with the next tile while it stores one.
    pub followed: bool,
}

/// The tiles of a product of `[m, k, n]`.
pub(crate) fn of_tiles(
    row: &Row,
    [m, k, n]: [usize; 3],
    Rates {
        hbm_us,
        l2,
        followed,
    }: Rates,
    machine: &Machine,
) -> Cost {
    let (rows, columns) = (f64::from(row.block.0), f64::from(row.columns));
    let (cut, depth) = (f64::from(row.parts), f64::from(row.block.1));
    let tiles = (m as f64 / rows).ceil() * (n as f64 / columns).ceil();
    let slots = reach(row.parts, f64::from(machine.multiprocessors));
    let stages = ((k as f64 / depth).ceil() / cut).ceil();
    // Two thread blocks of a multiprocessor share its rates, and hide each other's beginnings.
    let load = (tiles * cut / slots).max(1.0);
    let load = if load < 3.0 { load.ceil() } else { load };
    let turns = (tiles * cut / (slots * f64::from(row.min_blocks)))
        .ceil()
        .max(1.0);
    let turns = if followed { 1.0 } else { turns };
    let speed = machine.l2 / Machine::H200.l2;
    let sms = f64::from(machine.multiprocessors);
    let stage_bytes = (rows + columns) * PANEL_BYTES as f64;
    let rate = machine.wgmma * if row.dtype.bytes() == 4 { 0.5 } else { 1.0 };
    let gather_us = load * stages * stage_bytes / (l2 * machine.l2 / sms) * 1e6;
    let compute_us = load * stages * 2.0 * rows * columns * depth / (rate / sms) * 1e6;
    let area = rows * columns / 4096.0;
    let join_us = if row.parts > 1 {
        JOIN_US + JOIN_TILE_US * area
    } else {
        0.0
    };
    let ends_us = FIRST_US * turns + SEND_US * area * load + join_us;
    let latency_us = ends_us / speed;
    let cubes = [hbm_us, gather_us, compute_us].map(|t| t.powi(3));
    let mut us = LAUNCH_US + latency_us + cubes.iter().sum::<f64>().cbrt();
    if n < FEW_COLUMNS {
        us *= FEW;
    }
    Cost {
        us,
        hbm_us,
        gather_us,
        compute_us,
        latency_us,
    }
}
