//! Pairs of rows with equal keys. Each left row searches its right rows among the sorted keys; a scan of the counts
//! gives the starts; each pair searches its left row among the starts. The work per thread does not depend on the
//! counts, and the positions of pairs depend on the order alone.

use crate::device::prelude::*;
use crate::device::scan::scan;
use crate::families::tensor::abi::*;

buffers! {
    // `join` in `host/core/families/tensor/join/on_device.rs` allocates every array for the counts. The
    // right rows are a permutation.
    unsafe JoinParams {
        left: u64, Fresh;
        right_low: u32, Fresh;
        right_high: u32, Fresh;
        right_rows: u32, Fresh;
        first: u32, Fresh;
        starts: u32, Fresh;
        sums: u32, Fresh;
        left_order: u64, Fresh;
        right_order: u64, Fresh;
        out_left: u32, ReadWrite;
        out_right: u32, ReadWrite;
        out_low: u32, ReadWrite;
        out_high: u32, ReadWrite;
    }
}

#[inline(always)]
fn right_key(p: &JoinParams, at: u32) -> u64 {
    let low = p.right_low().at(at).ld() as u64;
    if p.right_high == 0 {
        return low;
    }
    (p.right_high().at(at).ld() as u64) << 32 | low
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
    unsafe fn run(p: &JoinParams, _: Maps) {
        let row = own();
        let mut count = 0;
        if row < p.left_count {
            let key = p.left().at(row).ld();
            let first = search(0, p.right_count, |at| right_key(p, at) < key);
            let end = search(first, p.right_count, |at| right_key(p, at) <= key);
            count = end - first;
            p.first().at(row).st(first);
            p.starts().at(row).st(count);
        }
        // A sum of 256 counts may not fit in 32 bits, so their low and high halves are added separately.
        let (_, low) = scan(count & 0xffff);
        let (_, high) = scan(count >> 16);
        if gpu::thread() == 0 {
            let sums = p.sums().at(gpu::block_x() as u64 * 2);
            sums.st(low);
            sums.at(1u32).st(high);
        }
    }
}

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, JoinParams> for JoinStarts {
    #[inline(always)]
    unsafe fn run(p: &JoinParams, _: Maps) {
        let row = own();
        let inside = row < p.left_count;
        let count = p.starts().at(row).ld_if(inside);
        let (before, _) = scan(count);
        let ahead = p.sums().at(gpu::block_x() as u64 * 2).ld();
        if inside {
            p.starts().at(row).st(ahead.wrapping_add(before));
        }
    }
}

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, JoinParams> for JoinFill {
    #[inline(always)]
    unsafe fn run(p: &JoinParams, _: Maps) {
        let pair = own();
        if pair >= p.pairs {
            return;
        }
        // The last row that starts at or before the pair: a row without pairs has the start of the next row.
        let start = |row: u32| p.starts().at(row).ld();
        let left = search(0, p.left_count, |row| start(row) <= pair) - 1;
        let first = p.first().at(left).ld();
        let place = first + (pair - start(left));
        let right = p.right_rows().at(place).ld();
        p.out_left().at(pair).st(left);
        p.out_right().at(pair).st(right);
        if p.out_low == 0 {
            return;
        }
        let order = p.left_order().at(left).ld() + p.right_order().at(right).ld();
        p.out_low().at(pair).st(order as u32);
        if p.out_high != 0 {
            p.out_high().at(pair).st((order >> 32) as u32);
        }
    }
}
