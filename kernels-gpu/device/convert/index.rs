//! The pattern of the output: block columns of the slots, padding behind those of a block row, block rows of the
//! groups. One warp for each block row.

use super::{ALL_LANES, Body, WARPS, lane, word};
use crate::abi::*;
use crate::device::elem::Elem;
use crate::device::gpu;
use crate::device::ptx::{global, warp};

impl Body for Index {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: Elem>(p: &ConvertParams, _at: u64) {
        let block_row = gpu::block_x() * WARPS + gpu::thread() / 32;
        if block_row >= p.block_rows {
            return;
        }
        let group = p.group.value as u64;
        let first = global::load_b32(word(p.starts, block_row as u64), true);
        let end = global::load_b32(word(p.starts, block_row as u64 + 1), true);
        let put = |slot: u64, column: u32| {
            if slot < p.capacity as u64 {
                global::store_b32(word(p.slot_columns, slot), column);
            }
        };
        let blocks = columns(p, block_row, first as u64 * group, put);
        let mut slot = first as u64 * group + (blocks + lane()) as u64;
        while slot < end as u64 * group {
            put(slot, NO_BLOCK);
            slot += 32;
        }
        let mut g = (first + lane()) as u64;
        while g < end as u64 && (g + 1) * group <= p.capacity as u64 {
            global::store_b32(word(p.group_rows, g), block_row);
            g += 32;
        }
    }
}

/// Puts the columns of the present blocks in order, from slot `start` on; their number.
#[inline(always)]
fn columns(p: &ConvertParams, block_row: u32, start: u64, put: impl Fn(u64, u32)) -> u32 {
    let row = block_row as u64 * p.words as u64;
    let (mut before, mut first) = (0u32, 0);
    while first < p.words {
        let w = first + lane();
        let mut bits = global::load_b32(word(p.present, row + w as u64), w < p.words);
        let mut inclusive = bits.count_ones();
        let mut step = 1;
        while step < 32 {
            let other = warp::shuffle::<32>(inclusive, lane().wrapping_sub(step) & 31, ALL_LANES);
            inclusive += if lane() >= step { other } else { 0 };
            step *= 2;
        }
        let mut rank = before + inclusive - bits.count_ones();
        if w < p.words {
            global::store_b32(word(p.ranks, row + w as u64), rank);
        }
        while bits != 0 {
            put(start + rank as u64, w * 32 + bits.trailing_zeros());
            rank += 1;
            bits &= bits - 1;
        }
        before += warp::shuffle::<32>(inclusive, 31, ALL_LANES);
        first += 32;
    }
    before
}
