//! Cost model of module `mttkrp`: rows gathered for each nonzero, and rows written.

use einsparse_kernels::table::Row;

use crate::cost::Cost;
use crate::cost::permutation_tile;
use crate::machine::Machine;

/// Properties of a sum over nonzeros that determine its cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowsWork {
    /// Number of nonzeros.
    pub(crate) entries: u64,
    /// Number of output rows that are written.
    pub(crate) rows: u64,
    /// Number of rows of all factors.
    pub(crate) factor_rows: u64,
    /// Number of factors.
    pub(crate) factors: u64,
    /// Number of columns of the output and of the factors.
    pub(crate) n: usize,
    /// Whether the output is also read.
    pub(crate) accumulate: bool,
    /// Whether the values must be reordered first.
    pub(crate) ordered: bool,
}

/// Launch cost in microseconds that remains, because lists are read while the previous kernel ends.
const LAUNCH_US: f64 = 2.5;
/// One burst of gathers, from address to arithmetic, in microseconds.
const BURST_US: f64 = 0.9;
/// Instructions of a segment of lanes per nonzero; and per vector of a gathered row, in addition to its elements.
const ENTRY_ISSUES: f64 = 8.0;
const VECTOR_ISSUES: f64 = 6.0;
/// Share of the issue slots that the loop reaches.
const ISSUE_SHARE: f64 = 0.7;
/// Microseconds of the launches that reorder values. Each value is read and written twice, without tiles as a sector.
const ORDER_US: f64 = 6.0;

/// Nonzeros of an item if the output is streamed. Rows that are written close in time are then close in memory.
const STREAMED_WEIGHT: u32 = 16;
/// Overhead of such an item before its first burst and after its last, in bursts.
const STREAMED_ENDS: f64 = 3.0;

/// Whether an output of `bytes` bytes is streamed: L2 evicts it first and keeps rows of the factors.
pub(crate) fn rows_streamed(bytes: u64, machine: &Machine) -> bool {
    bytes > machine.l2_bytes / 2
}

/// Nonzeros of an item: a quarter of the total work of a resident segment of lanes, or more if that is too few. Items
/// are small if the output is streamed.
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
    // Below 64 nonzeros, a carry costs more than a balanced end saves. Each segment of lanes then has one item.
    (share / 4).max(share.min(64)).clamp(16, 256) as u32
}

/// Predicts the cost of one kernel.
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
    let ordered_us =
        match (work.ordered, permutation_tile(work.entries as usize, row.dtype.bytes())) {
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
