//! Marks the blocks of a CSR matrix that have an entry. A thread block collects the bits of 16 rows of a block row in
//! shared memory, a warp for each row at a time. It then sets them in `marks` in global memory. The last thread block
//! of a block row moves `marks` to `present`, clears `marks` for the next run, and tallies the block row.

use super::tally::tally;
use super::{WARPS, arrives_last, lane, piece_rows, word};
use crate::device::prelude::*;
use crate::families::convert::abi::*;

impl<W: WalkInfo, E: Elem> Kernel<W, E, ConvertParams> for Mark {
    #[inline(always)]
    unsafe fn run(p: &ConvertParams, _at: u64) {
        grid::launch_dependents();
        let (block_row, first, rows) = piece_rows(p, gpu::block_x());
        let words = block_row as u64 * p.words as u64;
        let (marks, present) = (word(p.marks, words), word(p.present, words));
        let shared = p.words <= MARK_WORDS;
        let end = if shared { p.words } else { 0 };
        let mut w = gpu::thread();
        while w < end {
            copy::st_shared_b32(copy::dynamic_shared() + w * 4, 0);
            w += SCAN_THREADS;
        }
        // One load reads the offsets of all rows, instead of one wait per row. A block past the last row has pieces
        // without rows, which begin after the last offset.
        let valid = rows > 0 && lane() <= rows;
        let offset = global::ld_nc_b32(word(p.offsets, (first + lane()) as u64), valid);
        let of_row = |row: u32| warp::shfl(offset, row);
        gpu::sync_threads();
        let mut row = gpu::thread() / 32;
        while row < rows {
            entries(p, of_row(row), of_row(row + 1), |block| {
                let (at, bit) = (block / 32, 1 << (block % 32));
                if !shared {
                    global::red_or(word(marks, at as u64), bit);
                } else if copy::ld_shared_b32(copy::dynamic_shared() + at * 4) & bit == 0 {
                    copy::red_shared_or(copy::dynamic_shared() + at * 4, bit);
                }
            });
            row += WARPS;
        }
        gpu::sync_threads();
        w = gpu::thread();
        while w < end {
            let bits = copy::ld_shared_b32(copy::dynamic_shared() + w * 4);
            if bits != 0 {
                global::red_or(word(marks, w as u64), bits);
            }
            w += SCAN_THREADS;
        }
        if arrives_last(word(p.row_arrivals, block_row as u64), p.piece_rows.value) {
            tally(p, block_row, |w| {
                let bits = global::ld_cg_b32(word(marks, w as u64), true);
                global::st_b32(word(marks, w as u64), 0);
                global::st_b32(word(present, w as u64), bits);
                bits
            });
        }
    }
}

/// Calls `mark` with the block columns of a row's entries, which the warp loads as aligned vectors.
#[inline(always)]
fn entries(p: &ConvertParams, start: u32, end: u32, mark: impl Fn(u32)) {
    let mut known = NO_BLOCK;
    let mut base = start & !3;
    while base < end {
        let mut raw = [[0u32; 4]; 4];
        unroll!(u < 4, {
            let at = base + u as u32 * 128 + lane() * 4;
            raw[u] = global::ld_nc_v4(word(p.columns, at as u64), at < end);
        });
        unroll!(u < 4, {
            unroll!(i < 4, {
                let at = base + u as u32 * 128 + lane() * 4 + i as u32;
                let block = p.block_k.of(raw[u][i]).0;
                if at >= start && at < end && block != known {
                    mark(block);
                    known = block;
                }
            });
        });
        base += 512;
    }
}
