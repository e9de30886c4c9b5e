//! What a variant will cost on a machine: bytes over HBM, bytes gathered through L2, instructions,
//! arithmetic. The numbers that tune live here and in `families/<family>/cost`.

mod bitmap;
mod dense;
mod gather;
mod sampled;
pub(crate) mod staged;
mod turned;
mod vectors;

use std::fmt;

use einsparse_kernels::abi::{Dtype, IN_REGISTERS, PANEL_BYTES, WalkKind};
use einsparse_kernels::table::Row;

pub use crate::machine::Machine;
use crate::registry::has_strips;
use gather::predict_gather;
pub use gather::{bundle_weight, bundled_limit};
pub(crate) use sampled::tile_clocks;
pub use sampled::{Samples, predict_samples, sample_limit};
pub(crate) use turned::tile_of;
pub use turned::turned_us;

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
        let Cost {
            us,
            hbm_us,
            gather_us,
            compute_us,
            latency_us,
        } = self;
        write!(
            f,
            "{us:.1} us (hbm {hbm_us:.1}, gather {gather_us:.1}, compute {compute_us:.1}, latency {latency_us:.1})"
        )
    }
}

/// One burst of gathers, from address to arithmetic; of samples.
const BURST_US: f64 = 0.45;
/// What an item costs in dependent loads and stores.
const ITEM_US: f64 = 1.5;
/// Share of the issue slots that a loop of gathers reaches.
pub(crate) const ISSUE_SHARE: f64 = 0.6;
/// Cache lines that the L1s look up per multiprocessor and clock.
const LINES_PER_CLOCK: f64 = 0.54;
/// An empty kernel between two events, warm.
pub(crate) const LAUNCH_US: f64 = 1.5;
/// `mma.sync` rate that the block body reaches on 64 x 64 blocks, as a share of the ceiling.
const MMA_SHARE: f64 = 0.65;
/// One stage of the block family's pipeline when nothing hides it.
const STAGE_US: f64 = 0.7;
/// Filling and draining the pipeline of one block-family thread block.
const TILE_US: f64 = 3.5;

/// Predicts one variant.
pub fn predict(row: &Row, work: &Work, machine: &Machine) -> Cost {
    match row.walk {
        _ if has_strips(row) => predict_panels(row, work, machine),
        WalkKind::Nm => predict_nm(row, work, machine),
        WalkKind::Bitmap => bitmap::predict(row, work, machine),
        WalkKind::Bytemap => bitmap::predict_bytes(row, work, machine),
        WalkKind::Vector => vectors::predict(row, work, machine),
        WalkKind::SlicedEll => staged::predict(row, work, machine),
        WalkKind::Direct => dense::predict(row, work, machine),
        WalkKind::Block => predict_block(row, work, machine),
        // Of the general kernels `cost::einsum` tells.
        WalkKind::Csr | WalkKind::GroupCoo | WalkKind::Permuted | WalkKind::Listed => {
            predict_gather(row, work, machine)
        }
    }
}

/// The four times of a prediction overlap, but not for free: their third-power mean, which also tells apart variants
/// with the same bottleneck.
fn sum(
    work: &Work,
    machine: &Machine,
    dtype: Dtype,
    [gather_us, compute_us, latency_us]: [f64; 3],
) -> Cost {
    let hbm_us = work.compulsory_bytes(dtype) / machine.hbm * 1e6;
    let cubes = [hbm_us, gather_us, compute_us, latency_us].map(|t| t.powi(3));
    let us = LAUNCH_US + cubes.iter().sum::<f64>().cbrt();
    Cost {
        us,
        hbm_us,
        gather_us,
        compute_us,
        latency_us,
    }
}

fn predict_block(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let tiles = work.n.div_ceil(row.columns as usize).max(1) as f64;
    let element = row.dtype.bytes() as f64;
    let block = f64::from(row.block.0);
    let blocks = work.entries as f64 / (block * block);
    let padded = tiles * f64::from(row.columns);
    let bytes = blocks * tiles * (block * block + block * f64::from(row.columns)) * element;
    let gather_us = bytes / machine.l2 * 1e6;
    let tf32 = if row.dtype == Dtype::Tf32 { 0.33 } else { 1.0 };
    // Fewer than 64 rows of a block leave the mma pipe waiting for B's fragments.
    let shape = (block / 64.0).sqrt().min(1.0) * if row.vector == 1 { 0.3 } else { 1.0 };
    let arithmetic_us =
        2.0 * blocks * block * block * padded / (machine.mma * MMA_SHARE * shape * tf32) * 1e6;
    let slots = f64::from(machine.multiprocessors * row.min_blocks);
    let rows = (work.m as f64 / block).ceil();
    let fill_us = (rows * tiles / slots).max(1.0) * TILE_US;
    let limit = row_limit(row, blocks as u64, rows as usize, work.n, machine);
    let run = work.longest.min(u64::from(limit)) as f64 * block;
    let chain_us = TILE_US + (run * element / PANEL_BYTES as f64).ceil() * STAGE_US;
    sum(
        work,
        machine,
        row.dtype,
        [gather_us, arithmetic_us + fill_us, chain_us],
    )
}

/// One stage of a strip of 128 rows against 256, 128 columns when every multiprocessor works: its bytes through L2 take
/// longer than its arithmetic.
const STAGE_256_US: f64 = 0.70;
const STAGE_128_US: f64 = 0.46;
/// The same with A in registers: the fragments are loaded between two groups of `wgmma`, the longer the more there are.
const STAGE_REGISTERS_US: f64 = 0.55;
const STAGE_FRAGMENTS_US: f64 = 0.25;
/// Filling the pipeline of a strip and sending C out, per chunk of 64 columns.
const STRIP_US: f64 = 0.5;
/// Start of a persistent thread block: lists, first copies.
const START_US: f64 = 2.0;
/// What lists and records take of a dense product beyond the module `dense`, which has none.
const LISTS_US: f64 = 2.5;

/// Blocks are taken to lie at random. A slice of B is copied where anything in 128 rows wants it.
fn predict_panels(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let (bm, bk) = (work.block.0 as f64, work.block.1 as f64);
    let columns = f64::from(row.columns);
    let tiles = (work.n as f64 / columns).ceil().max(1.0) * work.items as f64;
    let element = row.dtype.bytes() as f64;
    let area = (work.m as f64 / bm).ceil() * (work.k as f64 / bk).ceil();
    let density = (work.entries as f64 / (bm * bk) / area.max(1.0)).min(1.0);
    let union = |rows: f64| 1.0 - (1.0 - density).powf((rows / bm).max(1.0));
    let strips = (work.m as f64 / 128.0).ceil();
    let slices = work.k as f64 * union(128.0);
    let bytes = strips * tiles * (slices * columns + 128.0 * density * work.k as f64) * element;
    let gather_us = bytes / machine.l2 * 1e6;
    let speed = machine.l2 / Machine::H200.l2;
    let stage_us = if row.order & IN_REGISTERS != 0 {
        STAGE_REGISTERS_US + STAGE_FRAGMENTS_US * density
    } else if row.columns > 128 {
        STAGE_256_US
    } else {
        STAGE_128_US
    } / speed;
    // Copies of single columns go out one by one.
    let stage_us = stage_us
        * if row.block.0 == 1 || row.block.1 == 1 {
            6.0
        } else {
            1.0
        };
    let depth = PANEL_BYTES as f64 / element;
    let strip_us = (slices / depth) * stage_us + STRIP_US * columns / 64.0;
    let turns = strips * tiles / f64::from(machine.multiprocessors);
    let turns = if turns < 3.0 { turns.ceil() } else { turns };
    let strips_us = turns.max(1.0) * strip_us;
    let cost = sum(work, machine, row.dtype, [gather_us, strips_us, START_US]);
    let lists_us = if work.index_slots == 0 { LISTS_US } else { 0.0 };
    Cost {
        us: cost.us + lists_us,
        ..cost
    }
}

/// Bytes a clock that shared memory takes and gives; sparse `wgmma` needs them all for B.
const SHARED_BYTES: f64 = 128.0;
/// What reading a byte of A costs beside one of B.
const SHARED_A: f64 = 1.5;
/// Rate of copies of whole tiles beside gathers through L2; more than 1.3 were seen, and they were not the limit.
const TILES_L2: f64 = 2.0;

/// Tiles one after the other, each at the rate of shared memory: B is read once for each 64 rows, A once, and both are
/// written.
fn predict_nm(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let (rows, columns) = (f64::from(row.block.0), f64::from(row.columns));
    let tiles = (work.m as f64 / rows).ceil() * (work.n as f64 / columns).ceil();
    // A batch is one launch after the other.
    let items = work.items as f64;
    let sms = f64::from(machine.multiprocessors);
    let turns = (tiles / sms).ceil().max(1.0);
    let (k, element) = (
        work.k.next_multiple_of(2 * row.block.1 as usize) as f64,
        row.dtype.bytes() as f64,
    );
    let (a, b) = (rows / 2.0 * element, columns * element);
    let shared = k * (rows / 64.0 * b + SHARED_A * a + a + b);
    let clock = machine.issue / 4.0 / sms;
    let tile_us = shared / SHARED_BYTES / clock * 1e6 + STRIP_US * rows * columns / 8192.0;
    let gather_us = turns * k * (a + b) / (TILES_L2 * machine.l2 / sms) * 1e6;
    sum(
        work,
        machine,
        row.dtype,
        [gather_us, turns * tile_us, START_US].map(|us| us * items),
    )
}

/// What a piece of a row holds at least, in entries for each part: a chain of four bursts, which a carry costs about.
const LEAST_PIECE: u64 = 32;

/// Longest piece of a row before it is cut, in entries (blocks): twice the mean load of a resident item, at least what
/// amortises a carry, at most what one chain of gathers should take. Where whole rows fill the machine several times
/// over, only rows far above the mean are cut: partial sums cost memory and traffic.
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
