//! Conversions, sorts and checks of unstructured formats. Each kernel is one step. Thread blocks have 256 threads:
//!
//! ```text
//! compact   dense -> CSR         warp: up to four segments; shared: kept elements; look-back between thread blocks
//! rows      offsets -> rows      thread: 8 adjacent entries; shared: marks of row starts, then a running maximum
//!           rows -> offsets      warp: 256 entries, 8 loads a lane in flight
//! starts    CSR -> GroupCOO      thread: 8 adjacent rows; look-back between thread blocks
//! fill      slots of GroupCOO    thread: 4 slots, all loads in flight; also slots of ELL
//!           permuted values      thread: 4 values, all loads in flight
//! sort      LSD radix sort       warp: 512 adjacent keys; count -> place (a thread block for each digit) -> move
//! top       largest of a row     thread block: a row; shared: counts of digits
//! reorder   permutation          thread block of 512: a tile of values; shared: the tile in its new order
//! check     rules of CSR         thread: 8 adjacent entries
//! ```
//!
//! Thread blocks exchange data through global memory. Other thread blocks hide the waits. No position depends on the
//! order of arrival at an atomic, so results are bitwise reproducible.

mod check;
mod compact;
mod fill;
mod reorder;
mod rows;
mod sort;
mod starts;
mod top;
mod turns;

use crate::device::prelude::*;
use crate::device::scan::{
    ALL_LANES, WARPS, inclusive_by, lane, over_warps, scan, share_last_of_warp,
};
use crate::families::convert::abi::*;

buffers! {
    // `Entries`, `Sort`, `Transpose` and `Reorder` in `host/core/families/convert/entries` allocate the
    // workspaces, and check the numbers of rows, columns and entries. Their callers give arrays of
    // these lengths and of the capacity.
    unsafe EntriesParams {
        source<E: Elem>: E, Fresh;
        offsets: u32, Fresh;
        columns: u32, Fresh;
        keys: u32, Fresh;
        first: u32, Fresh;
        second: u32, Fresh;
        out_keys: u32, ReadWrite;
        out_first: u32, ReadWrite;
        out_second: u32, ReadWrite;
        counts: u32, Fresh;
        totals: u32, Fresh;
        rows: u32, Fresh;
        starts: u32, Fresh;
        out_columns: u32, ReadWrite;
        out_values<E: Elem>: E, ReadWrite;
        turns: u32, Fresh;
        pivots: [u32; 4], Fresh;
        report: u32, Fresh;
    }
}

/// Shared address of the first word that [`scan`] does not use.
#[inline(always)]
fn after_scan() -> Shared<u32> {
    // SAFETY: `SHARED_BYTES` of each tile that calls this contains its words after `SCAN_BYTES`.
    unsafe { Shared::dynamic(SCAN_BYTES) }
}

/// Returns the last of `rows` rows that starts at or before entry `at`, which must be uniform over the warp. Each round
/// of the search has 32 probes: four rounds for a million rows.
#[inline(always)]
fn row_at(offsets: Global<u32, Fresh>, rows: u32, at: u32) -> u32 {
    let (mut low, mut high) = (0, rows);
    while high - low > 1 {
        let step = (high - low).div_ceil(33);
        let probe = low as u64 + (lane() as u64 + 1) * step as u64;
        let inside = probe < high as u64;
        let offset = offsets.at(probe).ld_if(inside);
        let passed = warp::ballot(inside && offset <= at).count_ones();
        low += passed * step;
        high = if high - low > step { low + step } else { high };
    }
    low
}

/// Writes row + 1 to shared memory, after the memory of `scan`, at the first entry of every row that starts in
/// `start..end`; the last row wins if several start together. Ends with a barrier; `first` is the row of entry `start`.
#[inline(always)]
fn mark_starts(p: &EntriesParams, first: u32, start: u32, end: u32) {
    let marks = after_scan();
    unroll!(i < 2, {
        marks.cast::<[u32; 4]>().at(gpu::thread() * 2 + i as u32).st([0; 4]);
    });
    gpu::sync_threads();
    let mut row = first + gpu::thread();
    while row < p.m {
        let offset = p.offsets().at(row).ld();
        if offset >= end {
            break;
        }
        if offset >= start {
            marks.at(offset - start).red_max(row + 1);
        }
        row += SCAN_THREADS;
    }
    gpu::sync_threads();
}

/// Loads the marks of this thread's eight entries.
#[inline(always)]
fn own_marks() -> [[u32; 4]; 2] {
    let from = after_scan().cast::<[u32; 4]>().at(gpu::thread() * 2);
    [from.ld(), from.at(1).ld()]
}

/// Max over the preceding threads, 0 for the first. Every thread must call it.
#[inline(always)]
fn scan_max(value: u32) -> u32 {
    let inclusive = inclusive_by(lane(), value, u32::max);
    gpu::sync_threads();
    let own = share_last_of_warp(inclusive);
    let before = warp::shfl(inclusive, lane().wrapping_sub(1) & 31);
    let mut largest = if lane() == 0 { 0 } else { before };
    // SAFETY: `SHARED_BYTES` of the tiles that call this contains the words of a scan.
    let of_warps = unsafe { Shared::<u32>::dynamic(0) };
    unroll!(w < 8, {
        let of_warp = of_warps.at(w as u32).ld();
        if (w as u32) < own {
            largest = largest.max(of_warp);
        }
    });
    gpu::sync_threads();
    largest
}

/// Element `i` of a raw vector, in memory format.
#[inline(always)]
fn element<E: Elem>(raw: &Raw, i: usize) -> Raw {
    match E::BYTES {
        8 => [raw[(i * 2) & 3], raw[(i * 2 + 1) & 3], 0, 0],
        4 => [raw[i & 3], 0, 0, 0],
        _ => [(raw[(i / 2) & 3] >> (i as u32 % 2 * 16)) & 0xffff, 0, 0, 0],
    }
}

/// Magnitude of an element as an integer in the same order; NaN with any payload is infinity + 1.
#[inline(always)]
fn magnitude<E: Elem>(raw: Raw) -> u64 {
    let (bits, infinity) = match E::DTYPE {
        Dtype::F64 => {
            let high = raw[1] & 0x7fff_ffff;
            ((high as u64) << 32 | raw[0] as u64, 0x7ff0u64 << 48)
        }
        Dtype::F16 => ((raw[0] & 0x7fff) as u64, 0x7c00),
        Dtype::Bf16 => ((raw[0] & 0x7fff) as u64, 0x7f80),
        _ => ((raw[0] & 0x7fff_ffff) as u64, 0x7f80_0000),
    };
    bits.min(infinity + 1)
}
