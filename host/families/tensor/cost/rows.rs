//! What the module `mttkrp` will cost: rows gathered for every entry, and rows written.

use einsparse_kernels::table::Row;

use crate::cost::Cost;
use crate::families::spmm::cost::transposed::tile_of;
use crate::machine::Machine;

/// A sum over entries by the numbers that decide its cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowsWork {
    /// Entries.
    pub(crate) entries: u64,
    /// Rows of the output that are written.
    pub(crate) rows: u64,
    /// Rows of all factors.
    pub(crate) factor_rows: u64,
    /// Factors.
    pub(crate) factors: u64,
    /// Columns of the output and of the factors.
    pub(crate) n: usize,
    /// The output is read too.
    pub(crate) accumulate: bool,
    /// Values are brought in order first.
    pub(crate) ordered: bool,
}

/// What is left of a launch when lists are read while the kernel ahead ends.
const LAUNCH_US: f64 = 2.5;
/// One burst of gathers, from address to arithmetic.
const BURST_US: f64 = 0.9;
/// Instructions of a segment for an entry; for each of its rows beside its elements.
const ENTRY_ISSUES: f64 = 8.0;
const VECTOR_ISSUES: f64 = 6.0;
/// Share of the issue slots that the loop reaches.
const ISSUE_SHARE: f64 = 0.7;
/// Launches and passes of values that are brought in order: each value read and written twice, alone a sector.
const ORDER_US: f64 = 6.0;

/// Entries of an item where the output goes past L2: rows that are written near each other in time are near each other
/// in memory.
const STREAMED_WEIGHT: u32 = 16;
/// Of such an item, what goes before its first burst and behind its last, in bursts.
const STREAMED_ENDS: f64 = 3.0;

/// Whether an output of so many bytes goes past the rows of the factors in L2.
pub(crate) fn rows_streamed(bytes: u64, machine: &Machine) -> bool {
    bytes > machine.l2_bytes / 2
}

/// Entries of an item: a quarter of what a resident segment of lanes does in all, where that is not too few; few where
/// the output is streamed.
pub(crate) fn rows_weight(
    row: &Row,
    (entries, streamed): (u64, bool),
    n: usize,
    machine: &Machine,
) -> u32 {
    if streamed {
        return STREAMED_WEIGHT;
    }
    let tiles = n.div_ceil(row.columns as usize).max(1) as u64;
    let held = u64::from(machine.multiprocessors * row.min_blocks * row.items).max(1);
    let share = entries * tiles / held;
    // Below 64 entries a carry costs more than even ends bring: then one for each segment.
    (share / 4).max(share.min(64)).clamp(16, 256) as u32
}

/// Predicts one kernel.
pub(crate) fn predict_rows(row: &Row, work: &RowsWork, machine: &Machine) -> Cost {
    let lanes = f64::from(row.threads / row.items);
    let tiles = work.n.div_ceil(row.columns as usize).max(1) as f64;
    let (element, entries) = (row.dtype.bytes() as f64, work.entries as f64);
    let (factors, width) = (work.factors as f64, work.n as f64 * row.dtype.bytes() as f64);
    let vector = f64::from(row.vector);
    let repeat = f64::from(row.columns) / lanes / vector;
    let places = entries * (4.0 * factors + element);
    let held = work.factor_rows as f64 * width;
    let hit = (0.6 * machine.l2_bytes as f64 / held.max(1.0)).min(1.0);
    let sectors = (width / 32.0).ceil() * 32.0;
    let gathered = entries * factors * sectors;
    let rate = 1.0 / (hit / machine.l2 + (1.0 - hit) / machine.hbm);
    let written = work.rows as f64 * width * if work.accumulate { 2.0 } else { 1.0 };
    let gather_us = (gathered / rate + (places * tiles + written) / machine.l2) * 1e6;
    let hbm_us = (places + held + written) / machine.hbm * 1e6;
    let per_entry = ENTRY_ISSUES + factors * repeat * (VECTOR_ISSUES + 1.5 * vector);
    let compute_us =
        entries * per_entry * tiles * lanes / 32.0 / (machine.issue * ISSUE_SHARE) * 1e6;
    let streamed = rows_streamed((work.rows as f64 * width) as u64, machine);
    let weight = f64::from(rows_weight(row, (work.entries, streamed), work.n, machine));
    let resident = f64::from(machine.multiprocessors * row.min_blocks * row.items);
    let turns = (entries * tiles / weight / resident).max(1.0);
    let ends = if streamed { STREAMED_ENDS } else { 0.0 };
    let chain = ((weight.min(entries) / f64::from(row.burst)).ceil() + ends) * BURST_US;
    let latency_us = turns * (chain + BURST_US);
    let fourth = [hbm_us, gather_us, compute_us, latency_us].map(|t| t.powi(4));
    let ordered_us = match (work.ordered, tile_of(work.entries as usize, row.dtype.bytes())) {
        (false, _) => 0.0,
        (true, Some(_)) => ORDER_US + entries * (4.0 * element + 4.0) / machine.hbm * 1e6,
        (true, None) => ORDER_US / 2.0 + entries * (36.0 + element) / machine.l2 * 1e6,
    };
    Cost {
        us: LAUNCH_US + ordered_us + fourth.iter().sum::<f64>().sqrt().sqrt(),
        hbm_us,
        gather_us,
        compute_us,
        latency_us,
    }
}
