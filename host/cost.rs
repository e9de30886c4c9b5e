//! What a kernel will cost on a machine: bytes over HBM, bytes gathered through L2, instructions, arithmetic. What
//! families share; their own is in `families/<family>/cost`.

use std::fmt;

use einsparse_kernels::abi::{Dtype, PANEL_BYTES, WalkKind};
use einsparse_kernels::table::Row;

pub use crate::machine::{Machine, RateSource};

/// An SpMM by the numbers that decide its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Entries of A (elements of stored blocks).
    pub entries: u64,
    /// Slots of A's index array.
    pub index_slots: u64,
    /// Entries (blocks) of the longest row.
    pub longest: u64,
    /// Entries (blocks) of the sixteen neighbouring rows that have most; 0 where nobody counted.
    pub fullest: u64,
    /// Steps of sixteen columns of eight rows, and those of the longest eight rows; 0 where A is made of blocks.
    pub steps: (u64, u64),
    /// Extents of a block; (1, 1) for single entries.
    pub block: (usize, usize),
    /// How many B and C there are for one A.
    pub items: usize,
    /// C is read too.
    pub accumulate: bool,
}

impl Work {
    /// Bytes that must move over HBM once: A, B, C.
    pub fn compulsory_bytes(&self, dtype: Dtype) -> f64 {
        let e = dtype.bytes() as f64;
        let c = (self.m * self.n) as f64 * if self.accumulate { 2.0 } else { 1.0 };
        let each = ((self.k * self.n) as f64 + c) * e;
        self.entries as f64 * e + self.index_slots as f64 * 4.0 + each * self.items as f64
    }

    /// The same with every element of A stored, in pieces as deep as a stage.
    pub fn all_stored(self, dtype: Dtype) -> Work {
        let stage = PANEL_BYTES.max(64 * dtype.bytes()) / dtype.bytes();
        Work {
            entries: (self.m * self.k) as u64,
            index_slots: 0,
            longest: self.k.div_ceil(stage) as u64,
            fullest: 0,
            steps: (0, 0),
            block: (64, stage),
            ..self
        }
    }

    /// Useful flops: 2 nnz N.
    pub fn flops(&self) -> f64 {
        2.0 * self.entries as f64 * (self.n * self.items) as f64
    }
}

/// A prediction, with what it is made of. Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The prediction.
    pub us: f64,
    /// Compulsory bytes over HBM's rate.
    pub hbm_us: f64,
    /// Gathered bytes over L2's (or, for a B that does not fit, HBM's) rate.
    pub gather_us: f64,
    /// Instructions or Tensor Core arithmetic over their rate.
    pub compute_us: f64,
    /// One thread block's chain of dependent gathers.
    pub latency_us: f64,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost { us, hbm_us, gather_us, compute_us, latency_us } = self;
        write!(
            f,
            "{us:.1} us (hbm {hbm_us:.1}, gather {gather_us:.1}, compute {compute_us:.1}, latency {latency_us:.1})"
        )
    }
}

/// One burst of gathers, from address to arithmetic; of samples.
pub(crate) const BURST_US: f64 = 0.45;
/// What an item costs in dependent loads and stores.
pub(crate) const ITEM_US: f64 = 1.5;
/// Share of the issue slots that a loop of gathers reaches.
pub(crate) const ISSUE_SHARE: f64 = 0.6;
/// Cache lines that the L1s look up per multiprocessor and clock.
pub(crate) const LINES_PER_CLOCK: f64 = 0.54;
/// An empty kernel between two events, warm.
pub(crate) const LAUNCH_US: f64 = 1.5;
/// Start of a persistent thread block: lists, first copies.
pub(crate) const START_US: f64 = 2.0;
/// Bytes a clock that shared memory takes and gives; sparse `wgmma` needs them all for B.
pub(crate) const SHARED_BYTES: f64 = 128.0;

/// The four times of a prediction overlap, but not for free: their third-power mean, which also tells apart variants
/// with the same bottleneck.
pub(crate) fn sum(
    work: &Work,
    machine: &Machine,
    dtype: Dtype,
    [gather_us, compute_us, latency_us]: [f64; 3],
) -> Cost {
    let hbm_us = work.compulsory_bytes(dtype) / machine.hbm * 1e6;
    let cubes = [hbm_us, gather_us, compute_us, latency_us].map(|t| t.powi(3));
    let us = LAUNCH_US + cubes.iter().sum::<f64>().cbrt();
    Cost { us, hbm_us, gather_us, compute_us, latency_us }
}

/// What a piece of a row holds at least, in entries for each part: a chain of four bursts, which a split-K fix-up costs
/// about.
const LEAST_PIECE: u64 = 32;

/// Longest piece of a row before it is cut, in entries (blocks): twice the mean load of a resident item, at least what
/// amortises a split-K fix-up, at most what one chain of gathers should take. Where whole rows fill the machine several
/// times over, only rows far above the mean are cut: partial sums cost memory and traffic.
pub fn row_limit(row: &Row, total: u64, rows: usize, n: usize, machine: &Machine) -> u32 {
    let tiles = n.div_ceil(row.columns as usize).max(1) as u64;
    let resident = u64::from(machine.multiprocessors * row.min_blocks * row.items).max(1);
    let mean = (total * tiles).div_ceil(resident);
    let (least, most) = match row.walk {
        WalkKind::Block => (512 / u64::from(row.block.0.max(1)), u64::from(u32::MAX)),
        _ => {
            let (parts, rows) = (u64::from(row.parts), rows.max(1) as u64);
            let crowded = rows * tiles >= 4 * resident;
            let above_mean = if crowded { 4 * total / rows } else { 0 };
            (LEAST_PIECE * parts, (512 * parts).max(above_mean))
        }
    };
    (2 * mean).clamp(least, most).min(u64::from(u32::MAX)) as u32
}
