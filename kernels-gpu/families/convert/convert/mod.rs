//! Block formats made on the GPU. An operation is a sequence of launches, one for each step. All data between steps is
//! in global memory.
//!
//! ```text
//! dense   score    a piece (16 x 32) of some lanes    source -> registers -> shuffles -> scores
//!         select   4096 candidates of a thread block  scores -> counts of digits in shared memory -> digits; the last
//!                                                     thread block finds the pivot's digit (top-k only, once a digit)
//!         tally    a block row of a thread block      scores, pivot -> present, ranks, counts; the last one: starts
//!         index    a block row of a warp              present, ranks, starts -> slot_columns, group_rows
//!         fill     4 copies of a thread               source -> registers -> values
//! CSR     mark     16 rows of a thread block          columns -> bits in shared memory -> marks; the last one of a
//!                                                     block row: present, ranks, counts; the last of all: starts
//!         scatter  a row of a warp                    present, ranks, starts -> pattern; entries -> values (`FillCsr`)
//! ```
//!
//! A step may be launched while the previous one ends (PDL) and waits for it before its first load. `score` and `mark`,
//! the first steps, start after the previous launch has ended and do not wait. Within a step, thread blocks are ordered
//! only by arrival counters ([`arrives_last`]). Counters are integers and sums of norms have a fixed order, so results
//! are bitwise reproducible.

mod fill;
mod index;
mod mark;
mod scatter;
mod score;
mod select;
mod tally;

use crate::device::prelude::*;
use crate::device::scan::{ALL_LANES, WARPS, lane};
use crate::device::split_k::block_arrives_last;
use crate::families::convert::abi::*;

buffers! {
    // `Blocks` in `host/core/families/convert/convert.rs` allocates the workspace by the geometry of
    // the request, and checks the leading dimension and the capacity. Its callers give a matrix of
    // the requested shape, and outputs for all slots of the capacity.
    unsafe ConvertParams {
        source<E: Elem>: E, ReadOnly;
        offsets: u32, Fresh;
        columns: u32, ReadOnly;
        scores<E: Elem>: E::Acc, Fresh;
        selections: [u32; 4], Fresh;
        digits: u32, Fresh;
        marks: u32, Fresh;
        present: u32, Fresh;
        ranks: u32, Fresh;
        counts: u32, Fresh;
        starts: u32, Fresh;
        arrivals: u32, Fresh;
        row_arrivals: u32, Fresh;
        slot_columns: u32, Fresh;
        group_rows: u32, Fresh;
        values: u8, ReadWrite;
    }
}

/// Returns block row, first row and number of matrix rows of the row of pieces `slab`: the pieces of 16 adjacent rows.
#[inline(always)]
fn piece_rows(p: &ConvertParams, slab: u32) -> (u32, u32, u32) {
    let (block_row, below) = p.piece_rows.of(slab);
    let first = block_row * p.block_m.value + below * PIECE.0;
    let of_block = (p.block_m.value - below * PIECE.0).min(PIECE.0);
    (block_row, first, of_block.min(p.m.saturating_sub(first)))
}

/// Score of a block: the sum of the scores of its pieces (step `score`), row by row, with eight loads in flight.
#[inline(always)]
fn score<E: Elem>(p: &ConvertParams, block_row: u32, column: u32) -> E::Acc {
    let across = p.piece_columns.value;
    let count = p.piece_rows.value * across;
    let pieces = p.block_columns.value as u64 * across as u64;
    let first =
        block_row as u64 * p.piece_rows.value as u64 * pieces + column as u64 * across as u64;
    let (mut sum, mut done) = (E::ZERO, 0);
    while done < count {
        let mut parts = [E::ZERO; 8];
        unroll!(u < 8, {
            let (below, beside) = p.piece_columns.of(done + u as u32);
            let at = first + below as u64 * pieces + beside as u64;
            parts[u] = p.scores::<E>().at(at).ld_if(done + (u as u32) < count);
        });
        unroll!(u < 8, { sum = E::add(sum, parts[u]) });
        done += 8;
    }
    sum
}

/// Score as an integer in the same order; NaN is the largest.
#[inline(always)]
fn ordered<E: Elem>(score: E::Acc) -> u64 {
    let [low, high] = E::words(score);
    // Scores are never negative, so their bits ascend with the value.
    let (bits, infinity) = if E::ACC_BYTES == 8 {
        ((high as u64) << 32 | low as u64, 0x7ff0u64 << 48)
    } else {
        ((low as u64) << 32, 0x7f80u64 << 48)
    };
    if bits > infinity { u64::MAX } else { bits }
}

/// Rank: high bits are the score, low bits the position among `candidates`, first position highest. Ranks are unique.
#[inline(always)]
fn rank(p: &ConvertParams, ordered: u64, place: u32) -> u64 {
    let last = (1u64 << p.position_bits) - 1;
    ((ordered >> p.dropped_bits) << p.position_bits) | (last - place as u64)
}

/// Words of shared memory.
#[inline(always)]
fn words() -> Shared<u32> {
    // SAFETY: `Tally` has those of a scan, `Mark` has `MARK_WORDS`, `Select` has `SELECT_WORDS`.
    unsafe { Shared::dynamic(0) }
}

/// [`block_arrives_last`] with the first word of shared memory.
#[inline(always)]
fn arrives_last(counter: Global<u32, Fresh>, count: u32) -> bool {
    block_arrives_last(counter, count, words())
}
