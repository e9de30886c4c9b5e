//! Which blocks are kept, how many in each block row, and where each block row starts. One thread block for each
//! block row; the last to arrive adds the counts up.

use super::{Body, WARPS, arrives_last, lane, ordered, rank, scan, score, word};
use crate::abi::*;
use crate::device::elem::Elem;
use crate::device::gpu;
use crate::device::ptx::{global, warp};

impl Body for Tally {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: Elem>(p: &ConvertParams, _at: u64) {
        let block_row = gpu::block_x();
        let present = word(p.present, block_row as u64 * p.words as u64);
        let mut own = 0;
        if p.flags & CONVERT_MARKED != 0 {
            let mut w = gpu::thread();
            while w < p.words {
                own += global::load_b32(word(present, w as u64), true).count_ones();
                w += CONVERT_THREADS;
            }
        } else {
            let mut w = gpu::thread() / 32;
            while w < p.words {
                let bits = warp::ballot(kept::<E>(p, block_row, w * 32 + lane()));
                if lane() == 0 {
                    global::store_b32(word(present, w as u64), bits);
                    own += bits.count_ones();
                }
                w += WARPS;
            }
        }
        let (_, count) = scan(own);
        if gpu::thread() == 0 {
            global::store_b32(word(p.counts, block_row as u64), count);
        }
        if arrives_last(p.arrivals, p.block_rows) {
            place(p);
        }
    }
}

#[inline(always)]
fn kept<E: Elem>(p: &ConvertParams, block_row: u32, column: u32) -> bool {
    if column >= p.block_columns.value {
        return false;
    }
    let ordered = ordered::<E>(score::<E>(p, block_row, column));
    if p.flags & CONVERT_TOP == 0 {
        return ordered > p.floor;
    }
    let position = block_row * p.block_columns.value + column;
    let (selection, place) = p.candidates.of(position);
    let [low, high] = global::load_v2(p.selections + selection as u64 * 16, true);
    let pivot = (high as u64) << 32 | low as u64;
    ordered > 0 && rank(p, ordered, place) >= pivot
}

/// Running sums of the groups of the block rows.
#[inline(always)]
fn place(p: &ConvertParams) {
    let each = p.block_rows.div_ceil(CONVERT_THREADS);
    let first = (gpu::thread() * each).min(p.block_rows);
    let end = (first + each).min(p.block_rows);
    let groups = |row: u32| {
        let count = global::load_b32_fresh(word(p.counts, row as u64), true);
        p.group.of(count + p.group.value - 1).0
    };
    let (mut row, mut own) = (first, 0);
    while row < end {
        own += groups(row);
        row += 1;
    }
    let (mut start, all) = scan(own);
    row = first;
    while row < end {
        global::store_b32(word(p.starts, row as u64), start);
        start += groups(row);
        row += 1;
    }
    if gpu::thread() == 0 {
        global::store_b32(word(p.starts, p.block_rows as u64), all);
    }
}
