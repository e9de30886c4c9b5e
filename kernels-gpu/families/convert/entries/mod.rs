//! Formats of single entries made on the GPU. A sort is a stable counting sort by digits: `count`, `place`, `move`.
//! `compact` and `starts` add up in one pass, thread blocks looking back at those in front of them. Counters
//! are integers and places follow from order alone: the same bits every time.

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
    ALL_LANES, WARPS, inclusive, inclusive_by, lane, leave_last, scan, word,
};
use crate::families::convert::abi::*;

/// Shared memory behind that of [`scan`].
#[inline(always)]
fn behind_scan() -> u32 {
    copy::dynamic_shared() + SCAN_BYTES
}

/// The last of `rows` rows that starts at or before entry `at`: every lane of the warp asks for the same. A search by
/// 32 probes at once: four rounds for a million rows.
#[inline(always)]
fn row_at(offsets: u64, rows: u32, at: u32) -> u32 {
    let (mut low, mut high) = (0, rows);
    while high - low > 1 {
        let step = (high - low).div_ceil(33);
        let probe = low as u64 + (lane() as u64 + 1) * step as u64;
        let inside = probe < high as u64;
        let offset = global::ld_cg_b32(word(offsets, probe), inside);
        let passed = warp::ballot(inside && offset <= at).count_ones();
        low += passed * step;
        high = if high - low > step { low + step } else { high };
    }
    low
}

/// Writes 1 + r behind the scan's memory for every row r that starts in `start..end`, at its first entry; the last
/// of those that start together. Ends with a barrier; `first` is the row of entry `start`.
#[inline(always)]
fn mark_starts(p: &EntriesParams, first: u32, start: u32, end: u32) {
    let marks = behind_scan();
    unroll!(i < 2, {
        let at = gpu::thread() * 8 + i as u32 * 4;
        copy::st_shared_v4(marks + at * 4, [0; 4]);
    });
    gpu::sync_threads();
    let mut row = first + gpu::thread();
    while row < p.m {
        let offset = global::ld_cg_b32(word(p.offsets, row as u64), true);
        if offset >= end {
            break;
        }
        if offset >= start {
            copy::red_shared_max(marks + (offset - start) * 4, row + 1);
        }
        row += SCAN_THREADS;
    }
    gpu::sync_threads();
}

/// The marks of this thread's eight entries.
#[inline(always)]
fn own_marks() -> [[u32; 4]; 2] {
    let from = behind_scan() + gpu::thread() * 32;
    [copy::ld_shared_v4(from), copy::ld_shared_v4(from + 16)]
}

/// Largest value of the threads in front of this one, 0 for the first. Every thread must call it.
#[inline(always)]
fn scan_max(value: u32) -> u32 {
    let inclusive = inclusive_by(lane(), value, u32::max);
    let own = leave_last(inclusive);
    let before = warp::shfl(inclusive, lane().wrapping_sub(1) & 31);
    let mut largest = if lane() == 0 { 0 } else { before };
    unroll!(w < 8, {
        let of_warp = copy::ld_shared_b32(copy::dynamic_shared() + w as u32 * 4);
        if (w as u32) < own {
            largest = largest.max(of_warp);
        }
    });
    gpu::sync_threads();
    largest
}

/// Element `i` of a raw vector, as it lies in memory.
#[inline(always)]
fn element<E: Elem>(raw: &Raw, i: usize) -> Raw {
    match E::BYTES {
        8 => [raw[(i * 2) & 3], raw[(i * 2 + 1) & 3], 0, 0],
        4 => [raw[i & 3], 0, 0, 0],
        _ => [(raw[(i / 2) & 3] >> (i as u32 % 2 * 16)) & 0xffff, 0, 0, 0],
    }
}

/// The magnitude of an element as an integer of the same order; NaN, of whatever bits, is the one above infinity.
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
