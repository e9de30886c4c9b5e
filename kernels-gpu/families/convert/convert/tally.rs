//! Selects the kept blocks, counts them in each block row, and computes where each block row starts. A thread block
//! tallies a block row; the last thread block to arrive adds up the counts. With `CONVERT_MARKED` only the starts are
//! computed, for another group size. `mark` also calls [`tally`].

use super::{WARPS, arrives_last, lane, ordered, rank, score};
use crate::device::compact::scan_all;
use crate::device::prelude::*;
use crate::device::strided::strided;
use crate::families::convert::abi::*;

impl<W: WalkInfo, E: Elem> Kernel<W, E, ConvertParams> for Tally {
    #[inline(always)]
    unsafe fn run(p: &ConvertParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let block_row = gpu::block_x();
        if p.flags & CONVERT_MARKED != 0 {
            if arrives_last(p.arrivals(), p.block_rows) {
                place(p);
            }
        } else {
            decide::<E>(p, block_row);
        }
    }
}

/// Computes the present blocks of a block row from its scores: a lane for each block, a ballot for each word.
#[inline(always)]
fn decide<E: Elem>(p: &ConvertParams, block_row: u32) {
    let present = p.present().at(block_row as u64 * p.words as u64);
    strided(gpu::thread() / 32, p.words, WARPS, |w| {
        let bits = warp::ballot(kept::<E>(p, block_row, w * 32 + lane()));
        if lane() == 0 {
            present.at(w).st(bits);
        }
    });
    // Other warps stored words that this warp reads next.
    gpu::sync_threads();
    tally(p, block_row, |w| present.at(w).ld());
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
    let pivot = p.selections().at(selection).cast::<u64>().ld();
    ordered > 0 && rank(p, ordered, place) >= pivot
}

/// Counts the present blocks of a block row, before each word and in total; `bits` is called once per word. The last
/// block row to arrive computes the starts of all.
#[inline(always)]
pub(super) fn tally(p: &ConvertParams, block_row: u32, bits: impl Fn(u32) -> u32) {
    let ranks = p.ranks().at(block_row as u64 * p.words as u64);
    let count = scan_all::<1>(
        p.words,
        |w, inside| if inside { bits(w).count_ones() } else { 0 },
        |w, before| ranks.at(w).st(before),
    );
    if gpu::thread() == 0 {
        p.counts().at(block_row).st(count);
    }
    if arrives_last(p.arrivals(), p.block_rows) {
        place(p);
    }
}

/// Computes the first group of each block row, with one thread block.
#[inline(always)]
fn place(p: &ConvertParams) {
    let all = scan_all::<4>(
        p.block_rows,
        |row, inside| p.group.of(p.counts().at(row).ld_if(inside) + p.group.value - 1).0,
        |row, start| p.starts().at(row).st(start),
    );
    if gpu::thread() == 0 {
        p.starts().at(p.block_rows).st(all);
    }
}
