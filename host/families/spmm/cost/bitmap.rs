//! What a kernel for tiles of bits or bytes costs. Measured on one H200, benches/NOTES.md,
//! "bitmap and bytemap: medium density, few columns".

use einsparse_kernels::table::Row;

use crate::cost::{Cost, Machine, Work, sum};

/// Clocks of a scheduler to expand a square of 16 x 16 of an empty A, and of a full one: values that lie further apart
/// meet in the banks of shared memory.
const SQUARE_CLOCKS: (f64, f64) = (75.0, 90.0);
/// The same where warps multiply each for itself: against 8 columns, and for each further column.
const WARP_SQUARE_CLOCKS: (f64, f64, f64) = (57.0, 69.0, 1.4);
/// What it takes to add the sums of such warps, a column.
const WARP_SUMS_US: f64 = 0.12;
/// List, starts, first copies, and the split-K fix-up of a strip of 16 columns that is cut.
const BITMAP_START_US: f64 = 6.0;
/// What a further part of a strip costs its last one to add, a column.
const BITMAP_PART_US: f64 = 0.015;

/// Clocks of a multiprocessor for a square of 16 x 16 with its places as bytes: of an empty A against 16 columns, for
/// each entry, for each further column.
const BYTES_CLOCKS: (f64, f64, f64) = (13.0, 0.09, 0.14);

/// Entries are spread out one by one, and every tile is multiplied.
pub(super) fn predict_bytes(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let (m, k) = (work.m as f64, work.k as f64);
    let tiles = (work.n as f64 / f64::from(row.columns)).ceil().max(1.0);
    let strips = (m / f64::from(row.block.0)).ceil();
    let b = strips * k * tiles * f64::from(row.columns) * row.dtype.bytes() as f64;
    let squares = (m / 16.0).ceil() * (k / 16.0).ceil();
    let (empty, each, column) = BYTES_CLOCKS;
    let wide = f64::from(row.columns.max(16) - 16) * column;
    let clocks = squares * (empty + wide) + work.entries as f64 * each;
    let expand = tiles * clocks * 4.0 / machine.issue;
    let arithmetic = 2.0 * m * k * tiles * f64::from(row.columns) / machine.products(row).max(1.0);
    let resident = f64::from(machine.multiprocessors * row.min_blocks);
    let parts = (resident / (strips * tiles)).max(1.0);
    let carry_us = BITMAP_START_US + parts * f64::from(row.columns) * BITMAP_PART_US;
    // What A would take as a byte map, whatever it is stored in now.
    let words = (work.m.div_ceil(64) * work.k.div_ceil(128) * 9) as u64 + work.entries / 4;
    let work = &Work { index_slots: words, ..*work };
    let compute_us = expand.max(arithmetic) * 1e6 + carry_us;
    sum(work, machine, row.dtype, [b / machine.l2 * 1e6, compute_us, 0.0])
}

/// Positions are expanded one like the other, however many hold a value; B comes through L2 for every strip.
pub(super) fn predict(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let (m, k) = (work.m as f64, work.k as f64);
    let tiles = (work.n as f64 / f64::from(row.columns)).ceil().max(1.0);
    let strips = (m / f64::from(row.block.0)).ceil();
    let b = strips * k * tiles * f64::from(row.columns) * row.dtype.bytes() as f64;
    let gather_us = b / machine.l2 * 1e6;
    let squares = (m / 16.0).ceil() * (k / 16.0).ceil() * tiles;
    let arithmetic = 2.0 * m * k * tiles * f64::from(row.columns) / machine.products(row).max(1.0);
    // Rows of B element by element are a warp's work of its own.
    let slow = if row.vector == 1 { 2.5 } else { 1.0 };
    let density = (work.entries as f64 / (m * k).max(1.0)).min(1.0);
    let ((empty, full), more, sums_us) = if row.parts > 1 {
        let (empty, full, column) = WARP_SQUARE_CLOCKS;
        let columns = f64::from(row.columns.max(8));
        let more = column * (columns - 8.0);
        if row.parts < 4 {
            // Half a tile each: B comes twice, and half as many sums meet.
            ((empty, full), more + 3.0, columns * WARP_SUMS_US / 2.0)
        } else {
            ((empty, full), more, columns * WARP_SUMS_US)
        }
    } else {
        (SQUARE_CLOCKS, 0.0, 0.0)
    };
    let clocks = empty + (full - empty) * density + more;
    let expand = slow * squares * clocks / machine.issue;
    let resident = f64::from(machine.multiprocessors * row.min_blocks);
    let parts = (resident / (strips * tiles)).max(1.0);
    // Sums of one column take as much room as those of eight.
    let part_us = f64::from(row.columns.max(8)) * BITMAP_PART_US;
    let carry_us = BITMAP_START_US + parts * part_us + sums_us;
    // What A would take as a bitmap, whatever it is stored in now.
    let words = (work.m.div_ceil(64) * work.k.div_ceil(64) * 137) as u64;
    let work = &Work { index_slots: words, ..*work };
    let compute_us = expand.max(arithmetic) * 1e6 + carry_us;
    sum(work, machine, row.dtype, [gather_us, compute_us, 0.0])
}
