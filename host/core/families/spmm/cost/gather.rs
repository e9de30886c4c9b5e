//! Cost model of the module `spmm` with a cold L2, fitted to DLMC and graphs with all rows of the table
//! (benches/NOTES.md, "Choice of kernel").

use einsparse_kernels::abi::WalkKind;
use einsparse_kernels::families::BUNDLED_THREADS;
use einsparse_kernels::table::Row;

use crate::cost::{Cost, Machine, Work, row_limit};
use crate::worklist::Runs;

/// Launch time in microseconds if the list of items is read while the previous kernel ends.
const LAUNCH_US: f64 = 2.0;
/// Time of one burst of gathers, from address to arithmetic, in microseconds.
const BURST_US: f64 = 0.41;
/// Extra time of a burst whose rows of B are in device memory, in microseconds: once for each row.
const FIRST_US: f64 = 0.4;
/// Time of the dependent loads and stores of a work item, in microseconds: item, nonzeros, first gather, result.
const ITEM_US: f64 = 0.73;
/// Time to add the parts of a shared item, in microseconds for every doubling of their number.
const JOIN_US: f64 = 0.27;
/// Waves of items from which on they overlap.
const WAVES: f64 = 1.5;
/// Share of the issue slots that the gather loop reaches.
const ISSUE_SHARE: f64 = 0.77;
/// Instructions of a segment: for a nonzero; for a vector, in addition to one for each element; for a row.
const ENTRY_ISSUES: f64 = 1.5;
const VECTOR_ISSUES: f64 = 17.0;
const ROW_ISSUES: f64 = 6.0;
/// Reads of A's sectors for each column tile: bursts are shorter than sectors, and cache lines are evicted in between.
const ENTRY_READS: f64 = 6.0;
/// Ratio of longest to mean row from which on the matrix is a graph with equally uneven columns. L2 then holds the most
/// frequent columns: its hit rate is `hit^UNEVEN` instead of `hit`.
const SKEWED: f64 = 16.0;
const UNEVEN: f64 = 0.15;
/// Extra L2 cost of a piece that is narrower than a line, for each further piece of the line.
const NARROW: f64 = 0.29;
/// Relative gain of the L2 rate if rows of a multiprocessor share rows of B.
const SHARED: f64 = 0.14;
/// Density x rows of a multiprocessor at which this gain is complete.
const SHARING: f64 = 0.042;
/// Relative cost of nonzeros whose rows of B are in L1, for a segment of 32 lanes. It applies to long products, from
/// `LONG_US` microseconds on.
const ENTRY_LANES: f64 = 0.1;
const LONG_US: f64 = 30.0;
/// Factor for 16-bit elements, whose conversions the issue slots above count only in part.
const HALVES: f64 = 1.15;
/// Factor for large thread blocks, which last as long as their slowest row.
const LARGE_BLOCKS: f64 = 1.1;
/// Extra time to start a bundle, in microseconds: it reads the rows that it holds.
const BUNDLE_US: f64 = 1.0;
/// Time for which the last piece of a cut row waits for the others, and time to add each of them, in microseconds.
const CARRY_US: f64 = 1.0;
const CARRY_PIECE_US: f64 = 0.3;
/// Factor for segments of at most `FEW_LANES` lanes with several vectors each, in short products: a warp waits for its
/// longest row.
const FEW_LANES: f64 = 8.0;
const FEW: f64 = 1.1;
/// Cost of a row in a bundle in addition to its nonzeros, in nonzeros.
const ROW_ENTRIES: u64 = 6;

/// Predicts a product. The four times overlap almost fully, so they are combined by their fourth powers.
pub(super) fn predict_gather(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let lanes = f64::from(row.threads / (row.items * row.parts));
    let vector = f64::from(row.vector);
    let repeat = f64::from(row.columns) / lanes / vector;
    let tiles = work.n.div_ceil(row.columns as usize).max(1) as f64;
    let element = row.dtype.bytes() as f64;
    let (entries, rows) = (work.entries as f64, work.m as f64);
    let sectors = (work.n as f64 * element / 32.0).ceil() * 32.0;
    let bytes = entries * (sectors + ENTRY_READS * (element + 4.0) * tiles);
    let bytes_us = bytes / gather_rate(row, work, machine) * 1e6;
    let width = (work.n as f64).min(f64::from(row.columns)) * element;
    // Registers are written at 128 bytes per clock and multiprocessor.
    let lines_us = entries * tiles * width / 128.0 / (machine.issue / 4.0) * 1e6;
    let convert = if element < 4.0 { vector } else { 0.0 };
    let per_entry = ENTRY_ISSUES + repeat * (VECTOR_ISSUES + vector + convert);
    let per_row = (ROW_ISSUES + 2.0 * repeat * vector) * f64::from(row.parts);
    let issues = (entries * per_entry + rows * per_row) * tiles * lanes / 32.0;
    let compute_us = issues / (machine.issue * ISSUE_SHARE) * 1e6;
    let latency_us = chain(row, work, machine, tiles);
    let gather_us = bytes_us.hypot(lines_us);
    let hbm_us = work.compulsory_bytes(row.dtype) / machine.hbm * 1e6;
    let fourth = [hbm_us, gather_us, compute_us, latency_us].map(|t| t.powi(4));
    let mut us = LAUNCH_US + fourth.iter().sum::<f64>().sqrt().sqrt();
    if us > LONG_US {
        us *= 1.0 + ENTRY_LANES * lanes / 32.0;
    } else if lanes <= FEW_LANES && repeat > 1.0 {
        us *= FEW;
    }
    if element == 2.0 {
        us *= HALVES;
    }
    if row.threads > BUNDLED_THREADS {
        us *= LARGE_BLOCKS;
    }
    Cost { us, hbm_us, gather_us, compute_us, latency_us }
}

/// Bytes per second at which rows of B arrive: from L2, or from HBM if a column tile of B does not fit in L2. Column
/// tiles run one after another. Both memories move whole lines; L2 loses less with narrow pieces.
fn gather_rate(row: &Row, work: &Work, machine: &Machine) -> f64 {
    let width = work.n.min(row.columns as usize) as f64 * row.dtype.bytes() as f64;
    // 60 % of L2 serves B; A and C stream through the rest.
    let even = (0.6 * machine.l2_bytes as f64 / (work.k as f64 * width).max(1.0)).min(1.0);
    let mean = work.entries as f64 / work.m.max(1) as f64;
    let skewed = work.longest as f64 > SKEWED * mean.max(1.0);
    let hit = if skewed { even.powf(UNEVEN) } else { even };
    let pieces = (128.0 / width.max(1.0)).clamp(1.0, 4.0);
    let tiles = work.n.div_ceil(row.columns as usize).max(1) as f64;
    let density = work.entries as f64 / (work.m as f64 * work.k as f64).max(1.0);
    let held = f64::from(row.min_blocks * row.items);
    let there = held.min(work.m as f64 * tiles / f64::from(machine.multiprocessors));
    let near = machine.l2 * (1.0 + SHARED * (density * there / SHARING).min(1.0));
    1.0 / (hit * (1.0 + NARROW * (pieces - 1.0)) / near + (1.0 - hit) * pieces / machine.hbm)
}

/// Time of dependent steps, in microseconds: waves of items, each a chain of bursts, and at least the longest item.
fn chain(row: &Row, work: &Work, machine: &Machine, tiles: f64) -> f64 {
    let rows = work.m.max(1) as u64;
    let items = resident_segments(row, machine) as f64;
    let step = f64::from(row.burst * row.parts);
    let first = (work.k as f64 / work.entries.max(1) as f64).min(1.0);
    let burst_us = BURST_US + FIRST_US * first;
    let fixed = ITEM_US + JOIN_US * f64::from(row.parts).log2();
    let longest = |limit: u32| {
        let piece = work.longest.min(u64::from(limit));
        let pieces = work.longest.div_ceil(u64::from(limit).max(1)) as f64;
        let cut = piece < work.longest;
        let carry = if cut { CARRY_US + CARRY_PIECE_US * pieces } else { 0.0 };
        fixed + carry + (piece as f64 / step).ceil() * burst_us
    };
    if let Some(weight) = bundles(row, [work.entries, work.longest, rows], work.n, machine) {
        let share = (work.entries + ROW_ENTRIES * rows) as f64 * tiles / items;
        let mean = BUNDLE_US + fixed + share / f64::from(row.burst) * BURST_US;
        return longest(bundled_limit(weight)).max(mean);
    }
    let longest = longest(row_limit(row, work.entries, work.m, work.n, machine));
    let mean = fixed + (work.entries as f64 / rows as f64 / step + 0.5) * burst_us;
    let waves = work.m as f64 * tiles / items;
    match waves {
        w if w <= 1.0 => longest,
        w if w <= WAVES => longest.max(w.ceil() * mean),
        w => longest.max(w * mean),
    }
}

/// Segments of lanes, or groups of segments, that run concurrently on the GPU.
fn resident_segments(row: &Row, machine: &Machine) -> u64 {
    u64::from(machine.multiprocessors * row.min_blocks * row.items).max(1)
}

/// Weight of a bundle of short rows, in nonzeros; `None` if each row is an item. Neighbouring rows are bundled if they
/// are many and short. Even rows of 16-bit elements are faster one by one. A bundle is a quarter of the work of a
/// resident segment of lanes, so that all segments end together.
fn bundles(
    row: &Row,
    [entries, longest, rows]: [u64; 3],
    n: usize,
    machine: &Machine,
) -> Option<u32> {
    let tiles = n.div_ceil(row.columns as usize).max(1) as u64;
    let held = resident_segments(row, machine);
    let takes = row.walk != WalkKind::Block && row.parts == 1 && row.threads == BUNDLED_THREADS;
    let even = row.dtype.bytes() == 2 && longest * rows <= 4 * entries;
    if !takes || even || entries > 64 * rows || rows * tiles < 2 * held {
        return None;
    }
    let share = (entries + ROW_ENTRIES * rows) * tiles / (4 * held);
    Some(share.clamp(24, 96) as u32)
}

/// Weight of a bundle of short rows of a matrix, in nonzeros; `None` if each row is an item.
pub fn bundle_weight(row: &Row, runs: &Runs, n: usize, machine: &Machine) -> Option<u32> {
    let rows = runs.rows.len() as u64;
    bundles(row, [runs.total, u64::from(runs.longest), rows], n, machine)
}

/// Max length of a piece of a row if bundles have this weight: pieces and sums of bundles then take equally long.
pub fn bundled_limit(weight: u32) -> u32 {
    2 * weight
}
