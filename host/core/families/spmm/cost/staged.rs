//! Cost model of the module `staged`, which multiplies nonzeros by rows of B in shared memory. Measured on one H200:
//! benches/NOTES.md, "staged: B in shared memory".

use einsparse_kernels::families::STAGED_ROW;
use einsparse_kernels::table::Row;

use crate::cost::{Cost, Machine, SHARED_BYTES, Work, sum};

/// Start and end of a thread block, in microseconds: first tiles of B, first nonzeros, and C.
const STAGED_US: f64 = 5.5;
/// Time to add the sums of warps that share a slice, in microseconds.
const STAGED_JOIN_US: f64 = 0.3;
/// Share of the shared memory rate that reads of B reach, at the clock that predictions assume.
const STAGED_SHARE: f64 = 0.97;
/// Clocks of a step of the warp with the longest row, when other warps are done.
const STAGED_STEP: f64 = 190.0;
/// Factor on the whole, relative to gathers with a cold L2: fitted to DLMC with all rows of the table.
const COLD: f64 = 0.7;
/// Rows of a slice, one per lane.
const STAGED_SLICE: f64 = 32.0;

/// Cost to finish a slice if all of B is in shared memory, in chunks.
pub(crate) const FINISH: u64 = 4;
/// Clocks of a chunk in that case, at the clock that predictions assume: 128 rows of 128 bytes, and its own bytes.
const CHUNK_CLOCKS: f64 = 120.0;
/// Start and end of a thread block, in chunks.
const START: u64 = 76;
/// Cost to add sums across the thread blocks of a cluster, in chunks.
const ACROSS: u64 = 13;
/// Extra time of the first round, in microseconds: no previous thread block hides it.
const FIRST_US: f64 = 1.5;

/// Distribution of a matrix over the GPU if all of B is in shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spread {
    /// Clusters for each column tile.
    pub clusters: u64,
    /// Thread blocks of a cluster, which share its slices.
    pub blocks: u64,
    /// Rounds of thread blocks on a multiprocessor.
    pub turns: u64,
    /// Chunks of a thread block, including the cost to finish its slices.
    pub load: u64,
}

impl Spread {
    /// Time, in chunks.
    fn cost(&self) -> u64 {
        let across = if self.blocks > 1 { ACROSS } else { 0 };
        self.turns * (START + across + self.load)
    }
}

/// Clusters that run concurrently; 0 if none can.
fn at_once(multiprocessors: u32, blocks: u64) -> u64 {
    // A cluster stays within one hardware group of multiprocessors, and some groups have fewer multiprocessors.
    let lost = match blocks {
        1 | 2 => 0,
        4 => 3,
        _ => 1,
    };
    let clusters = (u64::from(multiprocessors) / blocks).saturating_sub(lost);
    if blocks == 1 { clusters.max(1) } else { clusters }
}

/// Best distribution of `total` chunks in `slices` slices, the longest of `longest` chunks. The load of a cluster is
/// its share of all chunks and finishes, or the longest slice if that is more.
pub(crate) fn spread(
    [total, longest, slices]: [u64; 3],
    tiles: u64,
    multiprocessors: u32,
) -> Spread {
    let all = total + FINISH * slices;
    let of = |blocks: u64| {
        let once = at_once(multiprocessors, blocks);
        let most = (8 * once).min(slices).max(1);
        (1..=most).map(move |clusters| Spread {
            clusters,
            blocks,
            turns: (clusters * tiles.max(1)).div_ceil(once),
            load: all.div_ceil(clusters).max(longest + FINISH).div_ceil(blocks),
        })
    };
    let may = [1, 2, 4, 8].into_iter();
    let best = may.filter(|&blocks| at_once(multiprocessors, blocks) > 0).flat_map(of);
    let best = best.min_by_key(|s| (s.cost(), s.blocks, s.clusters));
    best.unwrap_or_default()
}

/// Predicts kernels that hold all of B. Slices are cut into equal shares of the warps, so no warp waits for a long row.
fn predict_resident(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let tiles = (work.n as u64).div_ceil(u64::from(row.columns)).max(1);
    let slices = (work.m as f64 / STAGED_SLICE).ceil() as u64;
    // Chunks are whole, and a slice is as long as its longest row.
    let chunks = work.entries as f64 * PADDED / 128.0 + slices as f64 / 2.0;
    let longest = work.longest.div_ceil(u64::from(row.burst));
    let spread = spread([chunks as u64, longest, slices], tiles, machine.multiprocessors);
    let element = row.dtype.bytes() as f64;
    let bytes = (spread.clusters * spread.blocks * tiles) as f64 * work.k as f64 * 128.0
        + work.entries as f64 * (2.0 + element) * tiles as f64;
    let gather_us = bytes / machine.l2 * 1e6;
    let clocks_per_us = machine.issue / 4.0 / f64::from(machine.multiprocessors) / 1e6;
    let compute_us = FIRST_US + spread.cost() as f64 * CHUNK_CLOCKS / clocks_per_us;
    sum(work, machine, row.dtype, [gather_us, compute_us, 0.0])
}

/// Ratio of slots of slices to nonzeros if rows have different lengths.
const PADDED: f64 = 1.2;

/// Predicts a product. Every slot reads its row of B from shared memory, and every thread block copies all of its
/// columns of B there. Rows are sorted, so slices wait only for a longest row far above the mean.
pub(super) fn predict(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let mut cost = if row.holds_b() {
        predict_resident(row, work, machine)
    } else {
        predict_tiles(row, work, machine)
    };
    cost.us *= COLD;
    cost
}

/// Predicts kernels that pass tiles of B through shared memory.
fn predict_tiles(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let columns = f64::from(row.columns);
    let tiles = (work.n as f64 / columns).ceil().max(1.0);
    let sms = f64::from(machine.multiprocessors);
    let us_per_clock = 1e6 / (machine.issue / 4.0 / sms);
    let mean = work.entries as f64 / work.m.max(1) as f64;
    let parts = f64::from(row.parts);
    // Chunks are whole, and each part waits for one.
    let steps = mean + 2.0 * parts;
    let slices = (work.m as f64 / STAGED_SLICE).ceil();
    let blocks = (slices / f64::from(row.items)).ceil() * tiles;
    let turns = blocks / sms;
    let turns = if turns < 4.0 { turns.ceil() } else { turns };
    // Slices of a thread block that read shared memory: at most all slices.
    let items = f64::from(row.items).min(slices.max(1.0));
    let read = steps * STAGED_SLICE * items * STAGED_ROW as f64;
    let written = work.k as f64 * STAGED_ROW as f64;
    let block_us = (read / STAGED_SHARE + written) / SHARED_BYTES * us_per_clock;
    let join_us = if row.parts > 1 { STAGED_JOIN_US } else { 0.0 };
    let bytes = blocks * written + work.entries as f64 * (2.0 + row.dtype.bytes() as f64) * tiles;
    let gather_us = bytes / machine.l2 * 1e6;
    let chain_us = work.longest as f64 / parts * STAGED_STEP * us_per_clock;
    let compute_us = turns.max(1.0) * (block_us + STAGED_US + join_us);
    sum(work, machine, row.dtype, [gather_us, compute_us, chain_us + STAGED_US])
}
