//! Shares of nonempty micro-tiles on a sample: one thread block per box of 128 rows by 64 columns, one warp per 32 rows
//! of it. Taller micro-tiles are unions of these.

use crate::device::prelude::*;
use crate::families::discover::abi::*;
use crate::families::discover::elements::{gathered, mark, vector};

buffers! {
    // `ShareSample::run` checks the shape of the matrix (`host/dynamic/sample.rs`). `SampleLaunch` allocates the state
    // and the report, and sets `DETECT_VECTORS` for aligned rows (`host/families/discover/sample.rs`).
    unsafe SampleParams {
        source: u8, ReadWrite;
        state: u64, Fresh;
        report: u64, Fresh;
    }
}

/// Packs the counts of micro-tiles of 32, 64 and 128 rows into one word.
#[inline(always)]
fn packed(counts: [u32; 3]) -> u64 {
    counts[0] as u64 | (counts[1] as u64) << SAMPLE_BITS | (counts[2] as u64) << (2 * SAMPLE_BITS)
}

/// Returns one of the counts.
#[inline(always)]
fn count(packed: u64, which: u32) -> u32 {
    (packed >> (which * SAMPLE_BITS)) as u32 & ((1 << SAMPLE_BITS) - 1)
}

/// First row and column of this thread block's box, different in each launch: a fixed sample could miss nonzeros
/// between its boxes.
#[inline(always)]
fn place(p: &SampleParams, turn: u32) -> [u32; 2] {
    let mut mixed = (gpu::block_x() ^ turn.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
    mixed ^= mixed >> 13;
    mixed = mixed.wrapping_mul(0xc2b2_ae35);
    let within = ((mixed as u64 * p.stride as u64) >> 32) as u32;
    let (down, across) = p.across.of(gpu::block_x() * p.stride + within);
    [down * SAMPLE_ROWS, across * SAMPLE_COLUMNS]
}

/// A bit for each of this warp's 64 columns with an element above the threshold in its 32 rows.
#[inline(always)]
fn columns_found(p: &SampleParams, [top, left]: [u32; 2]) -> [u32; 2] {
    let (warp, lane) = (gpu::thread() / 32, gpu::thread() % 32);
    let (row, eight) = (top + warp * 32 + lane / 8, lane % 8);
    let column = left + eight * 8;
    let mut raw = [[0; 4]; 8];
    unroll!(i < 8, {
        let row = row + i as u32 * 4;
        let columns = (column, p.columns, row < p.rows);
        let from = p.source().row(row, p.row_bytes);
        raw[i] = vector(from, columns, 16, p.flags & DETECT_VECTORS != 0);
    });
    let mut bits = 0;
    unroll!(w < 4, {
        let mut marks = 0;
        unroll!(i < 8, {
            marks |= mark(raw[i][w], 16, p.above);
        });
        bits |= gathered(marks, 16) << (2 * w);
    });
    let inside = p.columns.saturating_sub(column).min(8);
    bits &= (1 << inside) - 1;
    let shifted = bits << (eight % 4 * 8);
    [warp::or(if eight < 4 { shifted } else { 0 }), warp::or(if eight < 4 { 0 } else { shifted })]
}

/// The columns that each warp has found.
#[inline(always)]
fn of_warps() -> Shared<[u32; 2]> {
    // SAFETY: `SampleBox` has 8 bytes for each of four warps.
    unsafe { Shared::dynamic(0) }
}

/// Adds a box to the counts; the last thread block reports to the host.
#[inline(always)]
fn tell(p: &SampleParams, [top, left]: [u32; 2], turn: u32) {
    let mut groups = [[0u32; 2]; 4];
    unroll!(g < 4, { groups[g] = of_warps().at(g as u32).ld() });
    let mut found = [0; 3];
    unroll!(w < 2, {
        let [a, b, c, d] = groups.map(|group| group[w]);
        found[0] += a.count_ones() + b.count_ones() + c.count_ones() + d.count_ones();
        found[1] += (a | b).count_ones() + (c | d).count_ones();
        found[2] += (a | b | c | d).count_ones();
    });
    let rows = p.rows.saturating_sub(top).min(SAMPLE_ROWS);
    let columns = p.columns.saturating_sub(left).min(SAMPLE_COLUMNS);
    let looked_at = [rows.div_ceil(32), rows.div_ceil(64), rows.div_ceil(128)].map(|g| g * columns);
    p.state().atom_add(packed(found));
    p.state().at(1u32).atom_add(packed(looked_at));
    global::fence_gpu();
    if p.state().at(2u32).cast::<u32>().atom_add(1) + 1 != gpu::grid_x() {
        return;
    }
    global::fence_gpu();
    let found = p.state().ld_relaxed();
    let looked_at = p.state().at(1u32).ld_relaxed();
    // From 1 to 65,535: 0 means that there is not yet a report.
    let next = if turn >= 0xffff { 1 } else { turn + 1 };
    let mut report = (next as u64) << 48;
    unroll!(which < 3, {
        let (found, looked_at) = (count(found, which as u32), count(looked_at, which as u32));
        let share = (found as u64 * 0xffff).checked_div(looked_at as u64).unwrap_or(0);
        report |= share << (16 * which);
    });
    p.state().st_relaxed(0);
    p.state().at(1u32).st_relaxed(0);
    p.state().at(2u32).st_relaxed((next as u64) << 32);
    p.report().st_relaxed(report);
}

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, SampleParams> for SampleBox {
    #[inline(always)]
    unsafe fn run(p: &SampleParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        // Only the last thread block of this launch writes it, after all have read it.
        let turn = p.state().cast::<u32>().at(5u32).ld();
        let place = place(p, turn);
        let found = columns_found(p, place);
        if gpu::thread() % 32 == 0 {
            of_warps().at(gpu::thread() / 32).st(found);
        }
        gpu::sync_threads();
        if gpu::thread() == 0 {
            tell(p, place, turn);
        }
    }
}
