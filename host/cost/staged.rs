//! The staged family: entries multiply rows of B that wait in shared memory. Measured on one H200, benches/NOTES.md, "B in
//! shared memory".

use einsparse_kernels::abi::STAGED_ROW;
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

/// What finishing a slice costs where all of B is in shared memory, in chunks.
pub(crate) const FINISH: u64 = 4;
/// Start of a thread block there, in chunks.
const START: u64 = 32;
/// Clocks of a chunk at the rate of shared memory: 128 rows of 128 bytes.
const CHUNK_CLOCKS: f64 = 128.0;
/// Start of a thread block there, and joining the sums of slices that warps share.
const RESIDENT_US: f64 = 7.0;

/// Thread blocks for each tile of columns where all of B is in shared memory, and how often a multiprocessor takes one, for
/// `total` chunks with what finishing the slices costs: as many as there are multiprocessors, or so many that the last turn is full.
pub(crate) fn groups(total: u64, slices: u64, tiles: u64, multiprocessors: u32) -> (u64, u64) {
    let sms = u64::from(multiprocessors.max(1));
    let turns = |groups: u64| (groups * tiles.max(1)).div_ceil(sms);
    let cost = |groups: u64| turns(groups) * (START + total.div_ceil(groups));
    let most = (8 * sms).min(slices).max(1);
    let best = (1..=most).min_by_key(|&g| (cost(g), g)).unwrap_or(1);
    (best, turns(best))
}

/// Slices are cut into equal shares of the warps; nothing waits for a long row.
fn predict_resident(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let tiles = (work.n as u64).div_ceil(u64::from(row.columns)).max(1);
    let slices = (work.m as f64 / STAGED_SLICE).ceil() as u64;
    // Chunks are whole, and a slice is as long as its longest row.
    let chunks = work.entries as f64 * PADDED / 128.0 + slices as f64 / 2.0;
    let total = chunks as u64 + FINISH * slices;
    let (groups, turns) = groups(total, slices, tiles, machine.multiprocessors);
    let sms = f64::from(machine.multiprocessors);
    let us_per_clock = 1e6 / (machine.issue / 4.0 / sms);
    let chunk_us = CHUNK_CLOCKS / STAGED_SHARE * us_per_clock;
    let block_us = RESIDENT_US + total as f64 / groups as f64 * chunk_us;
    let element = row.dtype.bytes() as f64;
    let bytes = (groups * tiles) as f64 * work.k as f64 * 128.0
        + work.entries as f64 * (2.0 + element) * tiles as f64;
    let gather_us = bytes / machine.l2 * 1e6;
    let parts = [gather_us, turns as f64 * block_us, RESIDENT_US];
    let cost = sum(work, machine, row.dtype, parts);
    Cost {
        us: RESIDENT_SHARE * cost.us,
        ..cost
    }
}

/// What is found of that, on the record of variants.
const RESIDENT_SHARE: f64 = 0.75;

/// Slots of slices over entries, where rows are of different lengths.
const PADDED: f64 = 1.2;

/// Every slot reads its row of B from shared memory, and every thread block writes all of its columns of B there. Rows are
/// sorted, so that slices wait for little but a longest row far above the mean.
pub(super) fn predict(row: &Row, work: &Work, machine: &Machine) -> Cost {
    if row.holds_b() {
        return predict_resident(row, work, machine);
    }
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
    let read = steps * STAGED_SLICE * items * STAGED_ROW as f64;
    let written = work.k as f64 * STAGED_ROW as f64;
    let block_us = (read / STAGED_SHARE + written) / SHARED_BYTES * us_per_clock;
    let join_us = if row.parts > 1 { STAGED_JOIN_US } else { 0.0 };
    let bytes = blocks * written + work.entries as f64 * (2.0 + row.dtype.bytes() as f64) * tiles;
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
