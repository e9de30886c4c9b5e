//! Predicted cost of a kernel on a machine: bytes over HBM, bytes gathered through L2, instructions, arithmetic. This
//! file has the parts that families share; costs of a family are in `families/<family>/cost`.

use std::fmt;

use einsparse_kernels::abi::{Dtype, PANEL_BYTES, WalkKind};
use einsparse_kernels::table::Row;

pub use crate::machine::{Machine, RateSource};

/// Number of values from which on two launches that permute values cost less than a sector for each value.
const LEAST_TILED: usize = 1 << 18;
/// Values of a tile, as a power of two, and the max number of values for it. A tile of the source has a run for each
/// tile of the target, and runs should be cache lines. With tiles of 128 KB, a multiprocessor holds only one thread
/// block.
const TILES: [(u32, usize); 2] = [(13, 4 << 20), (14, 32 << 20)];
const TILES_OF_8_BYTES: [(u32, usize); 1] = [(13, 8 << 20)];

/// Values of a tile of a permutation, as a power of two, for `count` values of `element` bytes. `None` if values are
/// moved one by one.
pub(crate) fn permutation_tile(count: usize, element: usize) -> Option<u32> {
    let tiles: &[_] = if element == 8 { &TILES_OF_8_BYTES } else { &TILES };
    let fits = tiles.iter().find(|(_, most)| count <= *most);
    fits.filter(|_| count >= LEAST_TILED).map(|&(log, _)| log)
}

/// Quantities of an SpMM that determine its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Nonzeros of A (elements of stored blocks).
    pub entries: u64,
    /// Slots of A's index array.
    pub index_slots: u64,
    /// Nonzeros (blocks) of the longest row.
    pub longest: u64,
    /// Max number of nonzeros (blocks) in sixteen adjacent rows; 0 if not counted.
    pub fullest: u64,
    /// Number of steps of sixteen columns by eight rows, in total and in the longest eight rows; 0 if A consists of
    /// blocks.
    pub steps: (u64, u64),
    /// Extents of a block; (1, 1) for unstructured formats.
    pub block: (usize, usize),
    /// Batch: number of pairs of B and C for one A.
    pub items: usize,
    /// Whether C is read as well.
    pub accumulate: bool,
}

impl Work {
    /// Bytes of A, B and C, each of which must be moved over HBM once.
    pub fn compulsory_bytes(&self, dtype: Dtype) -> f64 {
        let e = dtype.bytes() as f64;
        let c = (self.m * self.n) as f64 * if self.accumulate { 2.0 } else { 1.0 };
        let each = ((self.k * self.n) as f64 + c) * e;
        self.entries as f64 * e + self.index_slots as f64 * 4.0 + each * self.items as f64
    }

    /// The work with every element of A stored, in blocks as deep as a stage.
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

/// A prediction and its components. Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Predicted time.
    pub us: f64,
    /// Compulsory bytes divided by the rate of HBM.
    pub hbm_us: f64,
    /// Gathered bytes divided by the rate of L2, or of HBM if B does not fit into L2.
    pub gather_us: f64,
    /// Instructions or Tensor Core arithmetic divided by their rate.
    pub compute_us: f64,
    /// Chain of dependent gathers of one thread block.
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

/// Time of one burst of gathers of an SDDMM, from address to arithmetic.
pub(crate) const BURST_US: f64 = 0.45;
/// Dependent loads and stores of one work item.
pub(crate) const ITEM_US: f64 = 1.5;
/// Share of the issue slots that a loop of gathers reaches.
pub(crate) const ISSUE_SHARE: f64 = 0.6;
/// Cache lines that the L1 caches look up per multiprocessor and clock.
pub(crate) const LINES_PER_CLOCK: f64 = 0.54;
/// An empty kernel between two events, warm.
pub(crate) const LAUNCH_US: f64 = 1.5;
/// Start of a persistent thread block: reading lists, first copies.
pub(crate) const START_US: f64 = 2.0;
/// Bytes per clock of shared memory. Sparse `wgmma` needs all of them for B.
pub(crate) const SHARED_BYTES: f64 = 128.0;

/// Combines the four times of a prediction by their third-power mean: they overlap, but not fully. The mean also
/// distinguishes variants with the same bottleneck.
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

/// Min length of a piece of a row, in nonzeros per part: a chain of four bursts, about the cost of a split-K fix-up.
const LEAST_PIECE: u64 = 32;

/// Max length of a piece of a row, in nonzeros (blocks). It is twice the mean load of a resident item. The lower bound
/// amortizes a split-K fix-up, the upper bound limits a chain of gathers. If whole rows fill the machine several times,
/// only rows far above the mean are split: partial sums cost memory and traffic.
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
