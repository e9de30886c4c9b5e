//! Cost model of the gemm kernels.

pub(crate) mod dense;

use einsparse_kernels::abi::{Dtype, FP8_MMA, IN_REGISTERS, PANEL_BYTES, WGMMA, WalkKind};
use einsparse_kernels::table::Row;

use crate::cost::{Cost, Machine, SHARED_BYTES, START_US, Work, row_limit, sum};
use crate::offer::Problem;
use crate::registry::has_strips;

/// Predicts the cost of one kernel.
pub(crate) fn predict(row: &Row, problem: &Problem, machine: &Machine) -> Cost {
    let work = &problem.work;
    match row.walk {
        _ if has_strips(row) => predict_panels(row, work, machine),
        WalkKind::Nm => predict_nm(row, work, machine),
        WalkKind::Direct => dense::predict(row, work, machine),
        WalkKind::Filled => dense::predict_filled(row, work, machine),
        _ => predict_block(row, work, machine),
    }
}

/// Share of the `mma.sync` rate that the block body reaches on 64 x 64 blocks.
const MMA_SHARE: f64 = 0.65;
/// Time of one stage of the block kernels, in microseconds, if nothing hides it.
const STAGE_US: f64 = 0.7;
/// Time to fill and drain the pipeline of a thread block of the block kernels, in microseconds.
const TILE_US: f64 = 3.5;

fn predict_block(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let tiles = work.n.div_ceil(row.columns as usize).max(1) as f64;
    let element = row.dtype.bytes() as f64;
    let block = f64::from(row.block.0);
    let blocks = work.entries as f64 / (block * block);
    let padded = tiles * f64::from(row.columns);
    let bytes = blocks * tiles * (block * block + block * f64::from(row.columns)) * element;
    let gather_us = bytes / machine.l2 * 1e6;
    let tf32 = if row.dtype == Dtype::Tf32 { 0.33 } else { 1.0 };
    // With blocks of fewer than 64 rows, the mma pipe waits for B's fragments.
    let shape = (block / 64.0).sqrt().min(1.0) * if row.vector == 1 { 0.3 } else { 1.0 };
    let arithmetic_us =
        2.0 * blocks * block * block * padded / (machine.mma * MMA_SHARE * shape * tf32) * 1e6;
    let slots = f64::from(machine.multiprocessors * row.min_blocks);
    let rows = (work.m as f64 / block).ceil();
    let fill_us = (rows * tiles / slots).max(1.0) * TILE_US;
    let limit = row_limit(row, blocks as u64, rows as usize, work.n, machine);
    let run = work.longest.min(u64::from(limit)) as f64 * block;
    let chain_us = TILE_US + (run * element / PANEL_BYTES as f64).ceil() * STAGE_US;
    sum(work, machine, row.dtype, [gather_us, arithmetic_us + fill_us, chain_us])
}

/// Time of one stage of a CTA tile of 128 rows and 256 or 128 columns, in microseconds, when every multiprocessor
/// works. Its bytes take longer through L2 than its arithmetic.
const STAGE_256_US: f64 = 0.70;
const STAGE_128_US: f64 = 0.46;
/// Time of one stage with A in registers, in microseconds, plus a term proportional to the density: the fragments are
/// loaded between two groups of `wgmma`.
const STAGE_REGISTERS_US: f64 = 0.55;
const STAGE_FRAGMENTS_US: f64 = 0.25;
/// Time to fill the pipeline of a CTA tile and to store C, in microseconds per chunk of 64 columns.
const STRIP_US: f64 = 0.5;
/// Time that lists and records add to a dense product, in microseconds. The module `dense` has neither.
const LISTS_US: f64 = 2.5;

/// Stage times of `mma.sync` kernels with 128 columns, in microseconds: with three or more pipeline stages, and with
/// two, where threads wait for copies. `SYNC_PIECES_US`: with pieces of 32 and of 16 rows, which are copied one by one,
/// and the term proportional to the density. Measured on an H200; `synchronous_stage_us` scales them to other
/// `mma.sync` rates.
const SYNC_STAGE_US: [f64; 2] = [0.80, 1.02];
const SYNC_PIECES_US: [f64; 3] = [0.90, 1.20, 0.45];

fn synchronous_stage_us(row: &Row, density: f64, machine: &Machine) -> f64 {
    let [deep, shallow] = SYNC_STAGE_US;
    let [large, small, all] = SYNC_PIECES_US;
    let us = if row.order & IN_REGISTERS != 0 {
        all * density + if row.block.0 < 32 { small } else { large }
    } else if row.burst > 2 {
        deep
    } else {
        shallow
    };
    let sms = |machine: &Machine| machine.mma / f64::from(machine.multiprocessors);
    // fp8 operands that are converted are multiplied as f16.
    let fp8 = matches!(row.dtype, Dtype::E4m3 | Dtype::E5m2) && row.needs & FP8_MMA == 0;
    let share = if fp8 { 1.2 } else { row.dtype.bytes() as f64 / 2.0 };
    us * share * sms(&Machine::H200) / sms(machine)
}

/// Predicts kernels of `wgmma` and its stand-ins, for blocks at random positions. A slice of B is copied if any block
/// of the 128 rows needs it.
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
    // If all of A is stored, slices are contiguous and are copied as fast as whole tiles.
    let lists = work.index_slots > 0;
    let l2 = if lists { 1.0 } else { dense::TILES_L2 };
    let gather_us = bytes / (l2 * machine.l2) * 1e6;
    let speed = machine.l2 / Machine::H200.l2;
    let stage_us = if row.stands_in {
        synchronous_stage_us(row, density, machine) * speed
    } else if row.order & IN_REGISTERS != 0 {
        STAGE_REGISTERS_US + STAGE_FRAGMENTS_US * density
    } else if row.columns > 128 {
        STAGE_256_US
    } else {
        STAGE_128_US
    } / speed;
    // Slices of a single row or column are copied one by one.
    let stage_us = stage_us * if row.block.0 == 1 || row.block.1 == 1 { 6.0 } else { 1.0 };
    let depth = PANEL_BYTES as f64 / element;
    let strip_us = (slices / depth) * stage_us + STRIP_US * columns / 64.0;
    let turns = strips * tiles / f64::from(machine.multiprocessors);
    let turns = if turns < 3.0 { turns.ceil() } else { turns };
    let strips_us = turns.max(1.0) * strip_us;
    let cost = sum(work, machine, row.dtype, [gather_us, strips_us, START_US]);
    let lists_us = if lists { 0.0 } else { LISTS_US };
    Cost { us: cost.us + lists_us, ..cost }
}

/// Cost of reading a byte of A from shared memory, relative to a byte of B.
const SHARED_A: f64 = 1.5;
/// Warps that read A if each warp has all 64 rows and a quarter of the columns.
const READERS_OF_A: f64 = 4.0;
/// Share of the `mma.sync` rate that 2:4 products reach, counting omitted products: benches/record/stand_ins,
/// `nm_spmm`.
const SPARSE_SHARE: f64 = 0.55;
/// Rate of copies of whole tiles, relative to gathers through L2. More than 1.3 was measured, and copies were not the
/// limit.
const TILES_L2: f64 = 2.0;

/// Predicts 2:4 kernels: tiles run one after another, each at the rate of shared memory. B is read once for each 64
/// rows, A once, and both are written.
fn predict_nm(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let (rows, columns) = (f64::from(row.block.0), f64::from(row.columns));
    let tiles = (work.m as f64 / rows).ceil() * (work.n as f64 / columns).ceil();
    // Each matrix of a batch is one launch.
    let items = work.items as f64;
    let sms = f64::from(machine.multiprocessors);
    let turns = (tiles / sms).ceil().max(1.0);
    let (k, element) =
        (work.k.next_multiple_of(2 * row.block.1 as usize) as f64, row.dtype.bytes() as f64);
    let (a, b) = (rows / 2.0 * element, columns * element);
    let by_wgmma = row.needs & WGMMA != 0;
    let of_a = if by_wgmma { SHARED_A } else { READERS_OF_A };
    // Each of two warpgroups reads B once, or once for each 64 of its rows.
    let of_b = if by_wgmma { rows / 64.0 } else { 2.0 };
    let shared = k * (of_b * b + of_a * a + a + b);
    let clock = machine.issue / 4.0 / sms;
    let shared_us = shared / SHARED_BYTES / clock * 1e6;
    // Half of the products are omitted. One-byte elements take half as long.
    let rate = machine.products(row) / sms * 4.0 / element * SPARSE_SHARE;
    let products_us = if by_wgmma { 0.0 } else { 2.0 * rows * columns * k / rate * 1e6 };
    let tile_us = shared_us.max(products_us) + STRIP_US * rows * columns / 8192.0;
    let gather_us = turns * k * (a + b) / (TILES_L2 * machine.l2 / sms) * 1e6;
    sum(work, machine, row.dtype, [gather_us, turns * tile_us, START_US].map(|us| us * items))
}
