//! Values of a CSR matrix in its blocks (the tile `FillCsr`). A warp has one row of all blocks of a block row;
//! blockIdx.y selects a range of slots of a long one. If the row fills its blocks, its entries are in output order, and
//! they are copied without reading their columns. Otherwise the warp clears the row, synchronizes, and stores the
//! entries one by one. The first warp of a block row also writes its pattern ([`index`]).

use super::index::{column_of, index};
use super::{ALL_LANES, WARPS, lane};
use crate::device::prelude::*;
use crate::families::convert::abi::*;

/// One row of the matrix and of its block row.
#[derive(Clone, Copy)]
struct Line {
    block_row: u32,
    /// First entry of the row, and one past the last.
    start: u32,
    end: u32,
    /// Slots of the block row within the capacity of the output, padding included.
    slots: u32,
    /// Number of blocks of the block row.
    blocks: u32,
    /// The row in the first block of the block row.
    to: Global<u8, ReadWrite>,
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, ConvertParams> for FillCsr {
    #[inline(always)]
    unsafe fn run(p: &ConvertParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let row = gpu::block_x() * WARPS + gpu::thread() / 32;
        let (block_row, below) = p.block_m.of(row);
        if block_row >= p.block_rows {
            return;
        }
        if below == 0 && gpu::block_y() == 0 {
            index(p, block_row);
        }
        let line = line::<E>(p, row, block_row, below);
        let full = fills::<E>(p, &line);
        let mut first = gpu::block_y() * p.chunk_slots;
        while first < line.slots {
            let end = (first + p.chunk_slots).min(line.slots);
            if full {
                copy::<E>(p, &line, first, end);
            } else {
                clear::<E>(p, &line, first, end);
                // Other lanes cleared the memory that this lane writes.
                warp::sync(ALL_LANES);
                scatter::<E>(p, &line, first, end);
            }
            first += gpu::grid_y() * p.chunk_slots;
        }
    }
}

#[inline(always)]
fn line<E: Elem>(p: &ConvertParams, row: u32, block_row: u32, below: u32) -> Line {
    let first = p.starts().at(block_row).ld();
    let slots = (p.starts().at(block_row + 1).ld() - first) as u64 * p.group.value as u64;
    let slot = first as u64 * p.group.value as u64;
    let room = (p.capacity as u64).saturating_sub(slot);
    let row_bytes = p.block_k.value as u64 * E::BYTES as u64;
    Line {
        block_row,
        start: p.offsets().at(row).ld_if(row < p.m),
        end: p.offsets().at(row + 1).ld_if(row < p.m),
        slots: slots.min(room) as u32,
        blocks: p.counts().at(block_row).ld(),
        to: p.values().bytes((slot * p.block_m.value as u64 + below as u64) * row_bytes),
    }
}

/// Whether the row has an entry at each position of its blocks and can be copied in vectors.
#[inline(always)]
fn fills<E: Elem>(p: &ConvertParams, line: &Line) -> bool {
    let last = p.block_columns.value - 1;
    let at = line.block_row as u64 * p.words as u64 + last as u64 / 32;
    let ragged = p.block_k.of(p.k).1 != 0;
    let edge = p.present().at(at).ld_if(ragged) >> (last % 32) & 1;
    let from = p.source::<E>().at(line.start).address();
    let whole = line.blocks as u64 * p.block_k.value as u64 == (line.end - line.start) as u64;
    p.flags & CONVERT_VECTORS != 0 && whole && edge == 0 && from.is_multiple_of(16)
}

#[inline(always)]
fn block_bytes<E: Elem>(p: &ConvertParams) -> u64 {
    p.block_m.value as u64 * p.block_k.value as u64 * E::BYTES as u64
}

#[inline(always)]
fn copy<E: Elem>(p: &ConvertParams, line: &Line, first: u32, end: u32) {
    let from = p.source::<E>().at(line.start).cast::<[u32; 4]>();
    let mut at = first * p.row_copies.value + lane();
    let end = end * p.row_copies.value;
    while at < end {
        let mut raw = [[0u32; 4]; 4];
        unroll!(u < 4, {
            let i = at + u as u32 * 32;
            let filled = i < line.blocks * p.row_copies.value;
            raw[u] = from.at(i).ld_once_if(filled && i < end);
        });
        unroll!(u < 4, {
            let i = at + u as u32 * 32;
            let (block, beside) = p.row_copies.of(i);
            if i < end {
                let to = line.to.row(block, block_bytes::<E>(p));
                to.cast::<[u32; 4]>().at(beside).st(raw[u]);
            }
        });
        at += 128;
    }
}

#[inline(always)]
fn clear<E: Elem>(p: &ConvertParams, line: &Line, first: u32, end: u32) {
    let vectors = p.flags & CONVERT_VECTORS != 0;
    let (each, bytes) = if vectors { (p.row_copies, 16) } else { (p.block_k, E::BYTES) };
    let mut at = first * each.value + lane();
    while at < end * each.value {
        let (block, beside) = each.of(at);
        let to = line.to.row(block, block_bytes::<E>(p)).bytes(beside as u64 * bytes as u64);
        if vectors {
            to.cast::<[u32; 4]>().st([0; 4]);
        } else {
            to.cast::<E>().st_raw([0; 4]);
        }
        at += 32;
    }
}

#[inline(always)]
fn scatter<E: Elem>(p: &ConvertParams, line: &Line, first: u32, end: u32) {
    let column = |at: u32, ok: bool| p.columns().at(at).ld_if(ok);
    // First entry of a slot: columns of a row ascend.
    let begin = |slot: u32| {
        if slot == 0 || slot >= line.blocks {
            return if slot == 0 { line.start } else { line.end };
        }
        let block = column_of(p, line.block_row, slot);
        // Not `lower_bound`, and not `strided` below: the copies of full rows of 128 columns would be slower.
        let (mut low, mut high) = (line.start, line.end);
        while low < high {
            let middle = low + (high - low) / 2;
            if column(middle, true) < block * p.block_k.value {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    };
    let words = line.block_row as u64 * p.words as u64;
    let (mut at, end) = (begin(first) + lane(), begin(end));
    while at < end {
        unroll!(u < 4, {
            let i = at + u as u32 * 32;
            let (block, beside) = p.block_k.of(column(i, i < end));
            let raw = p.source::<E>().at(i).ld_raw::<1>(i < end);
            let own = words + block as u64 / 32;
            let before = (1u32 << (block % 32)) - 1;
            let bits = p.present().at(own).ld_if(i < end) & before;
            let slot = p.ranks().at(own).ld_if(i < end) + bits.count_ones();
            if i < end && slot < line.slots {
                let to = line.to.row(slot, block_bytes::<E>(p)).bytes(beside * E::BYTES);
                to.cast::<E>().st_raw(raw);
            }
        });
        at += 128;
    }
}
