//! Pairs of rows with equal keys. Each left row searches its right rows among the sorted keys; a scan of the counts
//! gives the starts; each pair searches its left row among the starts. The work per thread does not depend on the
//! counts, and the positions of pairs depend on the order alone.

use crate::device::prelude::*;
use crate::device::scan::{scan, word};
use crate::families::tensor::abi::*;

#[inline(always)]
fn load_u64(array: u64, at: u32, inside: bool) -> u64 {
    let low = global::ld_cg_b32(array + at as u64 * 8, inside);
    let high = global::ld_cg_b32(array + at as u64 * 8 + 4, inside);
    (high as u64) << 32 | low as u64
}

#[inline(always)]
fn right_key(p: &JoinParams, at: u32) -> u64 {
    let low = global::ld_cg_b32(word(p.right_low, at as u64), true) as u64;
    if p.right_high == 0 {
        return low;
    }
    (global::ld_cg_b32(word(p.right_high, at as u64), true) as u64) << 32 | low
}

/// Binary search: returns the first index in `low..high` for which `passed` is false. `passed` must be true before it.
#[inline(always)]
fn search(mut low: u32, mut high: u32, passed: impl Fn(u32) -> bool) -> u32 {
    while low < high {
        let middle = low + (high - low) / 2;
        if passed(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[inline(always)]
fn own() -> u32 {
    gpu::block_x() * SCAN_THREADS + gpu::thread()
}

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, JoinParams> for JoinCount {
    #[inline(always)]
    unsafe fn run(p: &JoinParams, _: u64) {
        let row = own();
        let mut count = 0;
        if row < p.left_count {
            let key = load_u64(p.left, row, true);
            let first = search(0, p.right_count, |at| right_key(p, at) < key);
            let end = search(first, p.right_count, |at| right_key(p, at) <= key);
            count = end - first;
            global::st_b32(word(p.first, row as u64), first);
            global::st_b32(word(p.starts, row as u64), count);
        }
        // A sum of 256 counts may not fit in 32 bits, so their low and high halves are added separately.
        let (_, low) = scan(count & 0xffff);
        let (_, high) = scan(count >> 16);
        if gpu::thread() == 0 {
            let sums = word(p.sums, gpu::block_x() as u64 * 2);
            global::st_b32(sums, low);
            global::st_b32(sums + 4, high);
        }
    }
}

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, JoinParams> for JoinStarts {
    #[inline(always)]
    unsafe fn run(p: &JoinParams, _: u64) {
        let row = own();
        let inside = row < p.left_count;
        let count = global::ld_cg_b32(word(p.starts, row as u64), inside);
        let (before, _) = scan(count);
        let ahead = global::ld_cg_b32(word(p.sums, gpu::block_x() as u64 * 2), true);
        if inside {
            global::st_b32(word(p.starts, row as u64), ahead.wrapping_add(before));
        }
    }
}

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, JoinParams> for JoinFill {
    #[inline(always)]
    unsafe fn run(p: &JoinParams, _: u64) {
        let pair = own();
        if pair >= p.pairs {
            return;
        }
        // The last row that starts at or before the pair: a row without pairs has the start of the next row.
        let start = |row: u32| global::ld_cg_b32(word(p.starts, row as u64), true);
        let left = search(0, p.left_count, |row| start(row) <= pair) - 1;
        let first = global::ld_cg_b32(word(p.first, left as u64), true);
        let place = first + (pair - start(left));
        let right = global::ld_cg_b32(word(p.right_rows, place as u64), true);
        global::st_b32(word(p.out_left, pair as u64), left);
        global::st_b32(word(p.out_right, pair as u64), right);
        if p.out_low == 0 {
            return;
        }
        let order = load_u64(p.left_order, left, true) + load_u64(p.right_order, right, true);
        global::st_b32(word(p.out_low, pair as u64), order as u32);
        if p.out_high != 0 {
            global::st_b32(word(p.out_high, pair as u64), (order >> 32) as u32);
        }
    }
}
