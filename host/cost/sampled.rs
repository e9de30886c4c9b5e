//! What products at the places of a pattern (SDDMM) cost.

use einsparse_kernels::abi::{Dtype, SAMPLES, WalkKind};
use einsparse_kernels::table::Row;

use super::{BURST_US, Cost, ISSUE_SHARE, ITEM_US, LAUNCH_US, LINES_PER_CLOCK, Machine};

/// An SDDMM by the numbers that decide its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Samples {
    /// Rows of S and X.
    pub m: usize,
    /// Columns of S, rows of Y.
    pub n: usize,
    /// Terms of a product.
    pub k: usize,
    /// Entries of S (elements of stored blocks).
    pub entries: u64,
    /// Words that say where they are.
    pub index_slots: u64,
    /// How often the values pass: written, and read for `+=` and for a mask.
    pub passes: usize,
}

impl Samples {
    /// Bytes that must move over HBM once: X, Y, the pattern, the values.
    pub fn compulsory_bytes(&self, dtype: Dtype) -> f64 {
        let dense = ((self.m + self.n) * self.k) as f64;
        let values = self.entries as f64 * self.passes as f64;
        (dense + values) * dtype.bytes() as f64 + self.index_slots as f64 * 4.0
    }

    /// Useful flops: 2 nnz K.
    pub fn flops(&self) -> f64 {
        2.0 * self.entries as f64 * self.k as f64
    }
}

/// Predicts one row of the families `sampled` and `sddmm`.
pub fn predict_samples(row: &Row, work: &Samples, machine: &Machine) -> Cost {
    let parts = match row.walk {
        WalkKind::Block => windows(row, work, machine),
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

/// Windows of blocks: no two rows of the table differ but in their pieces, and wide ones are fewer copies.
fn windows(row: &Row, work: &Samples, machine: &Machine) -> [f64; 3] {
    let copies = 1.0 + 16.0 / f64::from(row.block.1);
    let compute_us = work.flops() / machine.wgmma.max(1.0) * 1e6;
    [compute_us * copies / 2.0, compute_us, ITEM_US]
}

/// Rows of Y gathered for every entry, as in the gathers of SpMM.
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
    // Rows of S that run side by side share rows of Y in L1.
    let near = machine.l2 * (1.0 + (density / 0.05).min(1.0));
    let bytes_us = bytes * (hit / near + (1.0 - hit) / machine.hbm) * 1e6;
    // One access of a segment for each vector.
    let access = (lanes * vector * element / 128.0).max(0.5);
    let lines = entries * steps * repeat * access;
    let lines_us = lines / (machine.issue / 4.0 * LINES_PER_CLOCK) * 1e6;
    let convert = if element < 4.0 { vector } else { 0.0 };
    // Per entry and step: its column and address; then vectors; per entry: the reduction and its share of a store.
    let each = steps * (4.0 + repeat * (1.0 + vector + convert)) + 5.0;
    let compute_us = entries * each * lanes / 32.0 / (machine.issue * ISSUE_SHARE) * 1e6;
    [
        bytes_us.hypot(lines_us),
        compute_us,
        chain(row, work, machine, steps),
    ]
}

/// Items one after the other, each a chain of bursts.
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

/// Longest run of entries that one item takes: what makes the list as long as the GPU is wide, at least what one
/// reduction adds up, at most what keeps a long row from being the tail. A cut costs one more read of a row of X.
pub fn sample_limit(row: &Row, entries: u64, machine: &Machine) -> u32 {
    let resident = u64::from(machine.multiprocessors * row.min_blocks * row.items).max(1);
    let fair = (entries / resident).next_multiple_of(SAMPLES as u64);
    fair.clamp(SAMPLES as u64, MOST_SAMPLES) as u32
}

/// Of a chain: eight reductions.
const MOST_SAMPLES: u64 = 64;
