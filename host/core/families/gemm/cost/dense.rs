//! Cost model of the dense kernels: tiles, split along k, are distributed over the multiprocessors. Measured on one
//! H200: benches/NOTES.md, "dense: small dense products".

use einsparse_kernels::abi::{PANEL_BYTES, STRIP_STEP, WGMMA};
use einsparse_kernels::table::Row;

use crate::cost::{Cost, LAUNCH_US, Machine, SHARED_BYTES, Work};
use crate::families::gemm::dense_csr::turns;

/// Time of a thread block in addition to its stages, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Ends {
    /// Time until its first stage ends. Other thread blocks may follow after that.
    first: f64,
    /// Time to store 64 x 64 elements of C.
    send: f64,
    /// Time to add the partial sums of a cluster: a constant, and the time per 64 x 64 elements.
    join: [f64; 2],
}

/// Times if A is copied.
const COPIED: Ends = Ends { first: 1.9, send: 0.3, join: [0.3, 0.1] };
/// Times if warps scatter A's nonzeros into the stages: fitted to eight kernels on DLMC and on large matrices. `first`
/// is 1 us below the measured value, because predictions of other kernels omit that time.
const LAID: Ends = Ends { first: 2.6, send: 0.1, join: [0.5, 0.3] };
/// With fewer columns, products take longer than the sum below; the cause is unknown. 8192 x 2048 times 8 columns takes
/// 27.6 us, 2.3 times the sum.
const FEW_COLUMNS: usize = 32;
const FEW: f64 = 2.0;
/// Rate of copies of whole tiles, relative to the gathers for which the L2 rate is defined.
pub(super) const TILES_L2: f64 = 1.5;

/// Multiprocessors on which clusters of `parts` thread blocks fit. A cluster stays within one partition of the GPU, so
/// the remainder of each partition is unused.
fn reach(parts: u32, sms: f64) -> f64 {
    let share = match parts {
        1 | 2 => 1.0,
        4 => 0.93,
        _ => 0.86,
    };
    let parts = f64::from(parts);
    (sms * share / parts).floor().max(1.0) * parts
}

/// Predicts a dense product. Thread blocks run in rounds. The copies and the products of a thread block overlap; its
/// start and its end do not.
pub(super) fn predict(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let rates = Rates {
        hbm_us: work.compulsory_bytes(row.dtype) / machine.hbm * 1e6,
        l2: TILES_L2,
        followed: false,
    };
    of_tiles(row, [work.m, work.k, work.n], rates, machine)
}

/// Clocks of a warp that scatters nonzeros: per stage, and per step of its list.
const LAY_CLOCKS: (f64, f64) = (500.0, 95.0);
/// Relative extra time if two thread blocks of a multiprocessor scatter nonzeros.
const LAY_SHARED: f64 = 0.4;
/// Factor on the HBM time: scattering has few loads in flight.
const LAY_BYTES: f64 = 1.9;

/// Predicts a product whose warps scatter A's nonzeros into the stages.
pub(super) fn predict_filled(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let Work { m, k, n, .. } = *work;
    let strip = f64::from(row.items);
    let stages = (k as f64 / f64::from(row.block.1)).ceil();
    let strips = (m as f64 / strip).ceil();
    // The last step of a stage is half full on average.
    let steps_of = |entries: f64| entries / stages.max(1.0) / f64::from(STRIP_STEP) + 0.5;
    let mean = work.entries as f64 / strips.max(1.0);
    let fullest = (work.fullest as f64 * strip / 16.0).min(strip * k as f64).max(mean);
    let e = row.dtype.bytes() as f64;
    let c = (m * n) as f64 * if work.accumulate { 2.0 } else { 1.0 };
    let words = strips * stages * steps_of(mean) * f64::from(STRIP_STEP) * 4.0;
    let bytes = words + work.entries as f64 * e + ((k * n) as f64 + c) * e;
    let rates =
        Rates { hbm_us: bytes / machine.hbm * 1e6 * LAY_BYTES, l2: TILES_L2, followed: false };
    let (open, step) = LAY_CLOCKS;
    let turns = f64::from(turns(row));
    let passes = ((stages / f64::from(row.parts)).ceil() / turns).ceil();
    // A cluster finishes with its fullest row group.
    let lay_us = passes * (open + step * steps_of(fullest)) / clock(machine) * 1e6;
    let a = A { ends: LAID, lay_us, copied: 0.0 };
    of_parts(row, [m, k, n], rates, a, machine)
}

/// Times and rates of the bytes of a product.
pub(crate) struct Rates {
    /// Time to copy the operands through HBM, in microseconds.
    pub hbm_us: f64,
    /// Rate of copies of tiles, relative to the L2 rate.
    pub l2: f64,
    /// Whether a thread block starts the next tile while it stores one.
    pub followed: bool,
}

/// Predicts the tiles of a product of `[m, k, n]` whose A is copied.
pub(crate) fn of_tiles(row: &Row, extents: [usize; 3], rates: Rates, machine: &Machine) -> Cost {
    let a = A { ends: COPIED, lay_us: 0.0, copied: f64::from(row.block.0) };
    of_parts(row, extents, rates, a, machine)
}

/// Clocks of a multiprocessor per second.
fn clock(machine: &Machine) -> f64 {
    machine.issue / 4.0 / f64::from(machine.multiprocessors)
}

/// Clocks of shared memory per stage, for a kernel whose warps read fragments: the stage is written, and each warp
/// reads its operands. 0 for `wgmma`, whose reads do not delay it.
pub(crate) fn shared_clocks(row: &Row) -> f64 {
    if row.needs & WGMMA != 0 {
        return 0.0;
    }
    let (rows, columns) = (f64::from(row.block.0), f64::from(row.columns));
    // TF32: each warp has all rows and 16 columns. Other types: 64 rows and a quarter of the columns.
    let read = match row.dtype.bytes() {
        4 => columns / 16.0 * (16.0 + rows),
        _ => rows / 16.0 * (64.0 + columns / 4.0),
    };
    (rows + columns + read) * PANEL_BYTES as f64 / SHARED_BYTES
}

/// How A gets into the stages.
struct A {
    ends: Ends,
    /// Time in which a thread block scatters its nonzeros, in microseconds.
    lay_us: f64,
    /// Rows of A per tile that are copied instead.
    copied: f64,
}

/// Predicts the tiles of a product of `[m, k, n]`, with A copied or scattered.
fn of_parts(
    row: &Row,
    [m, k, n]: [usize; 3],
    Rates { hbm_us, l2, followed }: Rates,
    a: A,
    machine: &Machine,
) -> Cost {
    let (rows, columns) = (f64::from(row.block.0), f64::from(row.columns));
    let (cut, depth) = (f64::from(row.parts), f64::from(row.block.1));
    let tiles = (m as f64 / rows).ceil() * (n as f64 / columns).ceil();
    let slots = reach(row.parts, f64::from(machine.multiprocessors));
    let stages = ((k as f64 / depth).ceil() / cut).ceil();
    // Two thread blocks of a multiprocessor share its rates and hide each other's start.
    let load = (tiles * cut / slots).max(1.0);
    let load = if load < 3.0 { load.ceil() } else { load };
    let turns = (tiles * cut / (slots * f64::from(row.min_blocks))).ceil().max(1.0);
    let turns = if followed { 1.0 } else { turns };
    let speed = machine.l2 / Machine::H200.l2;
    let sms = f64::from(machine.multiprocessors);
    let stage_bytes = (a.copied + columns) * PANEL_BYTES as f64;
    let rate = machine.products(row) * if row.dtype.bytes() == 4 { 0.5 } else { 1.0 };
    let gather_us = load * stages * stage_bytes / (l2 * machine.l2 / sms) * 1e6;
    let compute_us = load * stages * 2.0 * rows * columns * depth / (rate / sms) * 1e6;
    let area = rows * columns / 4096.0;
    let join_us = if row.parts > 1 { a.ends.join[0] + a.ends.join[1] * area } else { 0.0 };
    let ends_us = a.ends.first * turns + a.ends.send * area * load + join_us;
    let latency_us = ends_us / speed;
    // Thread blocks of one multiprocessor scatter at the same time.
    let blocks = f64::from(row.min_blocks);
    let shared = 1.0 + LAY_SHARED * (load.min(blocks) - 1.0);
    let lay_us = a.lay_us * (load / blocks * shared).max(1.0);
    let shared_us = load * stages * shared_clocks(row) / clock(machine) * 1e6;
    let cubes = [hbm_us, gather_us, compute_us, lay_us, shared_us].map(|t| t.powi(3));
    let mut us = LAUNCH_US + latency_us + cubes.iter().sum::<f64>().cbrt();
    if n < FEW_COLUMNS {
        us *= FEW;
    }
    Cost { us, hbm_us, gather_us, compute_us, latency_us }
}
