//! Cost model of products at the nonzeros of a pattern (SDDMM).

use einsparse_kernels::abi::{Dtype, PANEL_BYTES, SMEM_TILE, STRIP, WGMMA, WalkKind};
use einsparse_kernels::families::{CHUNK, SAMPLES, SddmmStagedParams, SddmmTilesParams};
use einsparse_kernels::table::Row;

use crate::cost::{
    BURST_US, Cost, ISSUE_SHARE, ITEM_US, LAUNCH_US, LINES_PER_CLOCK, Machine, START_US,
};

/// Quantities that determine the cost of an SDDMM.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Samples {
    /// Rows of S and X.
    pub m: usize,
    /// Columns of S, rows of Y.
    pub n: usize,
    /// Terms of a product.
    pub k: usize,
    /// Nonzeros of S (elements of stored blocks).
    pub entries: u64,
    /// Words of the index arrays.
    pub index_slots: u64,
    /// Chunks of 128 rows and 64 columns that contain nonzeros. Kernels with dense tiles compute all of them.
    pub chunks: u64,
    /// Passes over the values: one writes them, and `+=` and a mask read them once each.
    pub passes: usize,
}

impl Samples {
    /// Returns the bytes that must move over HBM once: X, Y, the pattern, the values.
    pub fn compulsory_bytes(&self, dtype: Dtype) -> f64 {
        let dense = ((self.m + self.n) * self.k) as f64;
        let values = self.entries as f64 * self.passes as f64;
        (dense + values) * dtype.bytes() as f64 + self.index_slots as f64 * 4.0
    }

    /// Returns the useful flops: 2 nnz K.
    pub fn flops(&self) -> f64 {
        2.0 * self.entries as f64 * self.k as f64
    }
}

/// Predicts the cost of a row of the modules `sampled`, `sddmm`, `sddmm_staged` and `sddmm_tiles`, or of their
/// stand-ins.
pub fn predict_samples(row: &Row, work: &Samples, machine: &Machine) -> Cost {
    let parts = match row.walk {
        WalkKind::Block => windows(row, work, machine),
        _ if row.takes::<SddmmStagedParams>() => staged(row, work, machine),
        _ if row.takes::<SddmmTilesParams>() => tiles(row, work, machine),
        _ => gathers(row, work, machine),
    };
    let hbm_us = work.compulsory_bytes(row.dtype) / machine.hbm * 1e6;
    let [gather_us, compute_us, latency_us] = parts;
    let cubes = [hbm_us, gather_us, compute_us, latency_us].map(|t| t.powi(3));
    Cost {
        us: LAUNCH_US + cubes.iter().sum::<f64>().cbrt(),
        hbm_us,
        gather_us,
        compute_us,
        latency_us,
    }
}

/// Share of a stage's products that wait for the next stage if few stages are in flight; an estimate.
fn short_ring(row: &Row) -> f64 {
    match row.needs & WGMMA {
        0 => 0.1 / f64::from(row.burst.max(2) - 1),
        _ => 0.0,
    }
}

/// Predicts kernels with windows of blocks. These rows differ only in their pieces; wide pieces need fewer copies.
fn windows(row: &Row, work: &Samples, machine: &Machine) -> [f64; 3] {
    let copies = 1.0 + 16.0 / f64::from(row.block.1);
    let compute_us = work.flops() / machine.products(row).max(1.0) * 1e6 * (1.0 + short_ring(row));
    [compute_us * copies / 2.0, compute_us, ITEM_US]
}

/// Clocks of a multiprocessor per stage of a dense tile and chunk of 64 columns: 256 of `wgmma`, and waits.
const CHUNK_CLOCKS: f64 = 350.0;
/// These clocks with `mma.sync`: 530 of it, 580 for its operands from shared memory, and waits.
const MMA_CHUNK_CLOCKS: f64 = 650.0;
/// Clocks for each tile of 64 rows of X or Y that a stage loads through L2.
const ROWS_CLOCKS: f64 = 182.0;
/// These clocks with `cp.async`.
const MMA_ROWS_CLOCKS: f64 = 240.0;
/// Clocks of a tile in addition to its stages, and for each of its chunks, whose sums leave the registers.
const TILE_CLOCKS: f64 = 900.0;
const OUT_CLOCKS: f64 = 250.0;
/// Clocks to round each such tile to TF32 in place.
const ROUND_CLOCKS: f64 = 190.0;
/// Clocks for each entry that is picked.
const PICK_CLOCKS: f64 = 0.3;
/// Extra time of the first tile after the start of a persistent thread block, in microseconds: its picks are loaded
/// after its list entry.
const TILES_START_US: f64 = 0.5;
/// Extra time of each stage of the first tile, in microseconds.
const STAGE_START_US: f64 = 0.15;
/// Clocks per microsecond.
const CLOCKS_PER_US: f64 = 1755.0;

/// Clocks of a multiprocessor for a tile.
pub(crate) fn tile_clocks(row: &Row, stages: usize, entries: f64) -> f64 {
    let chunks = f64::from(row.columns) / CHUNK as f64;
    let round = if row.dtype == Dtype::Tf32 { ROUND_CLOCKS } else { 0.0 };
    let [chunk, rows] = match row.needs & WGMMA {
        0 => [MMA_CHUNK_CLOCKS, MMA_ROWS_CLOCKS],
        _ => [CHUNK_CLOCKS, ROWS_CLOCKS],
    };
    let chunk = chunk * (1.0 + short_ring(row));
    let stage = (chunk * chunks).max(rows * (2.0 + chunks)) + round * (2.0 + chunks);
    let out = OUT_CLOCKS * chunks * row.dtype.bytes() as f64 / 2.0;
    stages as f64 * stage + TILE_CLOCKS + out + entries * PICK_CLOCKS
}

/// Predicts kernels with dense tiles, which every multiprocessor computes one after another.
fn tiles(row: &Row, work: &Samples, machine: &Machine) -> [f64; 3] {
    let across = row.columns as usize / CHUNK;
    let tiles = (work.chunks as f64 / across as f64)
        .max((work.m as f64 / STRIP as f64).min(work.chunks as f64));
    let stages = work.k.div_ceil(PANEL_BYTES / row.dtype.bytes());
    let speed = machine.l2 / Machine::H200.l2 * CLOCKS_PER_US;
    let entries = work.entries as f64 / tiles.max(1.0);
    let turns = tiles / f64::from(machine.multiprocessors);
    let turns = if turns < 3.0 { turns.ceil() } else { turns };
    let bytes = tiles * stages as f64 * (2 + across) as f64 * SMEM_TILE as f64;
    let gather_us = bytes / machine.l2 * 1e6;
    let compute_us = turns * tile_clocks(row, stages, entries) / speed;
    let start_us = START_US + TILES_START_US + stages as f64 * STAGE_START_US;
    [gather_us / 2.0, compute_us, start_us]
}

/// Clocks for an entry in addition to its row of Y from shared memory, and its share of a reduction over a whole warp.
const ENTRY_CLOCKS: f64 = 1.2;
const REDUCE_CLOCKS: f64 = 2.2;
/// Entries that a run of a row in the columns of one thread block wastes: it is rounded up to a whole reduction.
const RUN_WASTE: f64 = 7.0;

/// Predicts kernels that copy rows of Y to shared memory and read them from there.
fn staged(row: &Row, work: &Samples, machine: &Machine) -> [f64; 3] {
    let row_bytes = (work.k * row.dtype.bytes()).max(1) as f64;
    let sms = f64::from(machine.multiprocessors);
    let speed = machine.l2 / Machine::H200.l2 * CLOCKS_PER_US;
    let width = (f64::from(row.shared_bytes) / row_bytes).floor().min(work.n as f64);
    let ranges = (work.n as f64 / width.max(1.0)).ceil();
    let runs = (work.m as f64 * ranges).min(work.entries as f64);
    let entries = work.entries as f64 + RUN_WASTE * runs;
    let share = f64::from(row.threads / row.items) / 32.0;
    let clocks = row_bytes / 128.0 + ENTRY_CLOCKS + REDUCE_CLOCKS * share;
    // Each further thread block copies the rows again, which costs too much with few entries
    // (`families/sddmm/shelves.rs`).
    let blocks = (entries / (8.0 * width).max(1.0)).clamp(1.0, sms);
    let compute_us = entries * clocks / blocks / speed;
    let copies_us = (ranges / sms).ceil() * width * row_bytes / (machine.l2 / sms) * 1e6;
    let x_us = runs * row_bytes / machine.l2 * 1e6;
    [x_us, compute_us + copies_us, START_US]
}

/// Predicts kernels that gather a row of Y for every entry, like the gathers of SpMM.
fn gathers(row: &Row, work: &Samples, machine: &Machine) -> [f64; 3] {
    let lanes = f64::from(row.threads / row.items);
    let vector = f64::from(row.vector);
    let element = row.dtype.bytes() as f64;
    let entries = work.entries as f64;
    let steps = work.k.div_ceil(row.columns as usize).max(1) as f64;
    let repeat = f64::from(row.columns) / lanes / vector;
    let bytes = entries * (work.k as f64 * element / 32.0).ceil() * 32.0;
    let y = (work.n * work.k) as f64 * element;
    let hit = (0.6 * machine.l2_bytes as f64 / y.max(1.0)).min(1.0);
    let density = entries / (work.m as f64 * work.n as f64).max(1.0);
    // Rows of S that are computed concurrently share rows of Y in L1.
    let near = machine.l2 * (1.0 + (density / 0.05).min(1.0));
    let bytes_us = bytes * (hit / near + (1.0 - hit) / machine.hbm) * 1e6;
    // One access of a segment for each vector.
    let access = (lanes * vector * element / 128.0).max(0.5);
    let lines = entries * steps * repeat * access;
    let lines_us = lines / (machine.issue / 4.0 * LINES_PER_CLOCK) * 1e6;
    let convert = if element < 4.0 { vector } else { 0.0 };
    // Per entry and step: column and address, then vectors. Per entry: the reduction and its share of a store.
    let each = steps * (4.0 + repeat * (1.0 + vector + convert)) + 5.0;
    let compute_us = entries * each * lanes / 32.0 / (machine.issue * ISSUE_SHARE) * 1e6;
    [bytes_us.hypot(lines_us), compute_us, chain(row, work, machine, steps)]
}

/// Time of items one after another, each a chain of bursts, in microseconds.
fn chain(row: &Row, work: &Samples, machine: &Machine, steps: f64) -> f64 {
    let limit = f64::from(sample_limit(row, work.entries, machine));
    let bursts = steps * SAMPLES as f64 / f64::from(row.burst);
    let mean = (work.entries as f64 / work.m.max(1) as f64).clamp(1.0, limit);
    let turn = |entries: f64| ITEM_US + (entries / SAMPLES as f64).ceil() * bursts * BURST_US;
    let resident = f64::from(machine.multiprocessors * row.min_blocks * row.items);
    let waves = work.entries as f64 / mean / resident;
    let waves = if waves < 4.0 { waves.ceil() } else { waves };
    turn(limit).max(waves * turn(mean))
}

/// Returns the max length of a run of entries that one item computes. It makes as many items as the GPU runs at once,
/// within two bounds: at least one reduction, and at most a length that keeps a long row from finishing last. A cut
/// costs one more read of a row of X.
pub fn sample_limit(row: &Row, entries: u64, machine: &Machine) -> u32 {
    let resident = u64::from(machine.multiprocessors * row.min_blocks * row.items).max(1);
    let fair = (entries / resident).next_multiple_of(SAMPLES as u64);
    fair.clamp(SAMPLES as u64, MOST_SAMPLES) as u32
}

/// Max entries of a chain: eight reductions.
const MOST_SAMPLES: u64 = 64;
