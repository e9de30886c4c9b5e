//! The pattern of the output: block columns of the slots, padding after those of a block row, block rows of the groups.
//! One warp per block row. For CSR, the step `scatter` (`FillCsr`) calls [`index`] instead of a launch of its own.

use super::{WARPS, lane};
use crate::device::prelude::*;
use crate::device::strided::strided;
use crate::families::convert::abi::*;

impl<W: WalkInfo, E: Elem> Kernel<W, E, ConvertParams> for Index {
    #[inline(always)]
    unsafe fn run(p: &ConvertParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let block_row = gpu::block_x() * WARPS + gpu::thread() / 32;
        if block_row < p.block_rows {
            index(p, block_row);
        }
    }
}

/// Writes the pattern of a block row. A lane processes every 32nd word of present bits; `ranks` gives the first slot of
/// each word.
#[inline(always)]
pub(super) fn index(p: &ConvertParams, block_row: u32) {
    let group = p.group.value as u64;
    let first = p.starts().at(block_row).ld();
    let end = p.starts().at(block_row as u64 + 1).ld();
    let blocks = p.counts().at(block_row).ld();
    let put = |slot: u64, column: u32| {
        if slot < p.capacity as u64 {
            p.slot_columns().at(slot).st(column);
        }
    };
    strided(lane(), p.words, 32, |w| {
        let at = block_row as u64 * p.words as u64 + w as u64;
        let mut bits = p.present().at(at).ld();
        let mut slot = first as u64 * group + p.ranks().at(at).ld() as u64;
        while bits != 0 {
            put(slot, w * 32 + bits.trailing_zeros());
            slot += 1;
            bits &= bits - 1;
        }
    });
    let mut slot = first as u64 * group + (blocks + lane()) as u64;
    while slot < end as u64 * group {
        put(slot, NO_BLOCK);
        slot += 32;
    }
    let mut g = (first + lane()) as u64;
    while g < end as u64 && (g + 1) * group <= p.capacity as u64 {
        p.group_rows().at(g).st(block_row);
        g += 32;
    }
}

/// Returns the block column of block number `rank` of a block row.
#[inline(always)]
pub(super) fn column_of(p: &ConvertParams, block_row: u32, rank: u32) -> u32 {
    let row = block_row as u64 * p.words as u64;
    // The last word with at most `rank` blocks before it.
    let (mut low, mut high) = (0, p.words);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if p.ranks().at(row + middle as u64).ld() <= rank {
            low = middle;
        } else {
            high = middle;
        }
    }
    let mut bits = p.present().at(row + low as u64).ld();
    let mut before = rank - p.ranks().at(row + low as u64).ld();
    while before > 0 {
        bits &= bits.wrapping_sub(1);
        before -= 1;
    }
    low * 32 + bits.trailing_zeros()
}
