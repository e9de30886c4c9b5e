//! Marks the blocks of a CSR matrix that have an entry. A thread block collects the bits of 16 rows of a block row in
//! shared memory, a warp for each row at a time. It then sets them in `marks` in global memory. The last thread block
//! of a block row moves `marks` to `present`, clears `marks` for the next run, and tallies the block row.

use super::tally::tally;
use super::{WARPS, arrives_last, lane, piece_rows, words};
use crate::device::prelude::*;
use crate::device::strided::{clear, strided};
use crate::families::convert::abi::*;

impl<W: WalkInfo, E: Elem> Kernel<W, E, ConvertParams> for Mark {
    #[inline(always)]
    unsafe fn run(p: &ConvertParams, _: Maps) {
        grid::launch_dependents();
        let (block_row, first, rows) = piece_rows(p, gpu::block_x());
        let row = block_row as u64 * p.words as u64;
        let (marks, present) = (p.marks().at(row), p.present().at(row));
        let shared = p.words <= MARK_WORDS;
        let end = if shared { p.words } else { 0 };
        clear(words(), end, SCAN_THREADS);
        // One load reads the offsets of all rows, instead of one wait per row. A block past the last row has pieces
        // without rows, which begin after the last offset.
        let valid = rows > 0 && lane() <= rows;
        // SAFETY: no step writes the offsets. The preceding launch ended before this one started.
        let offsets = unsafe { p.offsets().with::<ReadOnly>() };
        let offset = offsets.at(first + lane()).ld_if(valid);
        let of_row = |row: u32| warp::shfl(offset, row);
        gpu::sync_threads();
        strided(gpu::thread() / 32, rows, WARPS, |row| {
            entries(p, of_row(row), of_row(row + 1), |block| {
                let (at, bit) = (block / 32, 1 << (block % 32));
                if !shared {
                    marks.at(at).red_or(bit);
                } else if words().at(at).ld() & bit == 0 {
                    words().at(at).red_or(bit);
                }
            });
        });
        gpu::sync_threads();
        strided(gpu::thread(), end, SCAN_THREADS, |w| {
            let bits = words().at(w).ld();
            if bits != 0 {
                marks.at(w).red_or(bits);
            }
        });
        if arrives_last(p.row_arrivals().at(block_row), p.piece_rows.value) {
            tally(p, block_row, |w| {
                let bits = marks.at(w).ld();
                marks.at(w).st(0);
                present.at(w).st(bits);
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
            raw[u] = p.columns().at(at).cast::<[u32; 4]>().ld_if(at < end);
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
