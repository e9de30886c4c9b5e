//! Cost model of kernels for bitmaps and bytemaps. Measured on one H200: benches/NOTES.md, "bitmap and bytemap: medium
//! density, few columns".

use einsparse_kernels::table::Row;

use crate::cost::{Cost, Machine, Work, sum};

/// Clocks in which a scheduler expands a 16 x 16 square of an empty A, and of a full one. Values at larger distances
/// cause bank conflicts in shared memory.
const SQUARE_CLOCKS: (f64, f64) = (75.0, 90.0);
/// Clocks of a square if each warp multiplies its own stages: empty and full with 8 columns, and for each further
/// column.
const WARP_SQUARE_CLOCKS: (f64, f64, f64) = (57.0, 69.0, 1.4);
/// Time to add the sums of such warps, in microseconds per column.
const WARP_SUMS_US: f64 = 0.12;
/// Time for the list, the starts, the first copies and the split-K fix-up of a CTA tile of 16 columns, in microseconds.
const BITMAP_START_US: f64 = 6.0;
/// Time to add each further part of a CTA tile, in microseconds per column.
const BITMAP_PART_US: f64 = 0.015;

/// Clocks in which a multiprocessor processes a 16 x 16 square whose positions are bytes: for an empty A and 16
/// columns, for each nonzero, for each further column.
const BYTES_CLOCKS: (f64, f64, f64) = (13.0, 0.09, 0.14);

/// Predicts kernels for bytemaps. Nonzeros are expanded one by one, and every tile is multiplied.
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
    // Size of A as a bytemap, in any format of the operand.
    let words = (work.m.div_ceil(64) * work.k.div_ceil(128) * 9) as u64 + work.entries / 4;
    let work = &Work { index_slots: words, ..*work };
    let compute_us = expand.max(arithmetic) * 1e6 + carry_us;
    sum(work, machine, row.dtype, [b / machine.l2 * 1e6, compute_us, 0.0])
}

/// Predicts kernels for bitmaps. The time to expand positions hardly depends on their number of nonzeros. B is read
/// through L2 for every CTA tile.
pub(super) fn predict(row: &Row, work: &Work, machine: &Machine) -> Cost {
    let (m, k) = (work.m as f64, work.k as f64);
    let tiles = (work.n as f64 / f64::from(row.columns)).ceil().max(1.0);
    let strips = (m / f64::from(row.block.0)).ceil();
    let b = strips * k * tiles * f64::from(row.columns) * row.dtype.bytes() as f64;
    let gather_us = b / machine.l2 * 1e6;
    let squares = (m / 16.0).ceil() * (k / 16.0).ceil() * tiles;
    let arithmetic = 2.0 * m * k * tiles * f64::from(row.columns) / machine.products(row).max(1.0);
    // A warp copies rows of B element by element.
    let slow = if row.vector == 1 { 2.5 } else { 1.0 };
    let density = (work.entries as f64 / (m * k).max(1.0)).min(1.0);
    let ((empty, full), more, sums_us) = if row.parts > 1 {
        let (empty, full, column) = WARP_SQUARE_CLOCKS;
        let columns = f64::from(row.columns.max(8));
        let more = column * (columns - 8.0);
        if row.parts < 4 {
            // Half a tile each: B is read twice, and half as many sums are added.
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
    // Sums of one column occupy as much memory as those of eight.
    let part_us = f64::from(row.columns.max(8)) * BITMAP_PART_US;
    let carry_us = BITMAP_START_US + parts * part_us + sums_us;
    // Size of A as a bitmap, in any format of the operand.
    let words = (work.m.div_ceil(64) * work.k.div_ceil(64) * 137) as u64;
    let work = &Work { index_slots: words, ..*work };
    let compute_us = expand.max(arithmetic) * 1e6 + carry_us;
    sum(work, machine, row.dtype, [gather_us, compute_us, 0.0])
}
