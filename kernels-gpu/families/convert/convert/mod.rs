//! Block formats made on the GPU. Dense: `score` reads the matrix once, `select` finds the pivot of a top-k choice,
//! `tally` decides, `index` writes the pattern, `fill` copies. CSR: `mark` finds the blocks, `scatter` writes
//! them. Counters are integers, sums of norms have one order: the same bits every time.

mod fill;
mod index;
mod mark;
mod scatter;
mod score;
mod select;
mod tally;

use crate::device::prelude::*;
use crate::device::scan::{ALL_LANES, WARPS, lane, scan, word};
use crate::families::convert::abi::*;

/// First row of the row of pieces `slab`, its block row, and how many of its rows the matrix has.
#[inline(always)]
fn piece_rows(p: &ConvertParams, slab: u32) -> (u32, u32, u32) {
    let (block_row, below) = p.piece_rows.of(slab);
    let first = block_row * p.block_m.value + below * PIECE.0;
    let of_block = (p.block_m.value - below * PIECE.0).min(PIECE.0);
    (block_row, first, of_block.min(p.m.saturating_sub(first)))
}

/// Score of a block: of its pieces, row by row, eight of them in flight.
#[inline(always)]
fn score<E: Elem>(p: &ConvertParams, block_row: u32, column: u32) -> E::Acc {
    let across = p.piece_columns.value;
    let count = p.piece_rows.value * across;
    let pieces = p.block_columns.value as u64 * across as u64;
    let first =
        block_row as u64 * p.piece_rows.value as u64 * pieces + column as u64 * across as u64;
    let (mut sum, mut done) = (E::ZERO, 0);
    while done < count {
        let mut raw = [[0u32; 2]; 8];
        unroll!(u < 8, {
            let (below, beside) = p.piece_columns.of(done + u as u32);
            let at = first + below as u64 * pieces + beside as u64;
            let (at, ok) = (p.scores + at * E::ACC_BYTES as u64, done + (u as u32) < count);
            raw[u] = if E::ACC_BYTES == 8 {
                global::ld_cg_v2(at, ok)
            } else {
                [global::ld_cg_b32(at, ok), 0]
            };
        });
        unroll!(u < 8, { sum = E::add(sum, E::from_words(raw[u])) });
        done += 8;
    }
    sum
}

/// A score as an integer of the same order; NaN is the largest.
#[inline(always)]
fn ordered<E: Elem>(score: E::Acc) -> u64 {
    let [low, high] = E::words(score);
    // No score is negative, so the bits ascend with the value.
    let (bits, infinity) = if E::ACC_BYTES == 8 {
        ((high as u64) << 32 | low as u64, 0x7ff0u64 << 48)
    } else {
        ((low as u64) << 32, 0x7f80u64 << 48)
    };
    if bits > infinity { u64::MAX } else { bits }
}

/// The score in front, then the position among `candidates`, the first highest: no two ranks are equal.
#[inline(always)]
fn rank(p: &ConvertParams, ordered: u64, place: u32) -> u64 {
    let last = (1u64 << p.position_bits) - 1;
    ((ordered >> p.dropped_bits) << p.position_bits) | (last - place as u64)
}

/// Counts this thread block in. True for the one that comes last, which then sees what the others wrote.
#[inline(always)]
fn arrives_last(counter: u64, count: u32) -> bool {
    global::fence_gpu();
    gpu::sync_threads();
    let mut before = 0;
    if gpu::thread() == 0 {
        before = global::atom_add(counter, 1);
    }
    // Only thread 0 adds something, so the sum is what it found.
    let last = scan(before).1 + 1 == count;
    if last {
        global::fence_gpu();
        if gpu::thread() == 0 {
            global::st_b32(counter, 0);
        }
    }
    last
}
