//! Values of the micro-tiles, each contiguous, in the order of its list: what a product reads as A's transpose. The region waits
//! in shared memory for its places.

use super::{MicroTiles, Place, Vectors};
use crate::abi::*;
use crate::device::gpu;
use crate::device::ptx::{copy, global};

impl<const MH: u32, const MW: u32, const STEP: u32> MicroTiles<MH, MW, STEP> {
    /// Where a vector of the region lies. Lanes that read one column read eight rows each, of elements of 4 bytes one: their vectors
    /// must not meet in a bank.
    #[inline(always)]
    fn kept(r: Region, bits: u32, row: u32, vector: u32) -> u32 {
        let turn = if bits == 32 { row } else { row / 8 };
        copy::arena() + DETECT_REGION + (row * r.vectors + (vector ^ (turn % 16))) * 16
    }

    /// Brings this thread's vectors to shared memory, past the registers, so that six thread blocks share a multiprocessor:
    /// those that wait for their places leave others to load.
    #[inline(always)]
    pub(super) fn fetch(p: &DetectParams, r: Region, bits: u32, place: Place) {
        let (row, step) = Self::row(r, 0);
        let vector = gpu::thread() % r.vectors;
        let column = place.left + vector * (128 / bits);
        unroll!(i < 8, {
            let row = row + i as u32 * step;
            let to = Self::kept(r, bits, row, vector);
            let row = place.top + row;
            if p.flags & DETECT_VECTORS == 0 {
                copy::store_shared_v4(to, Self::vector(p, bits, row, column));
            } else {
                let inside = row < p.rows && column < p.columns;
                let at = row as u64 * p.row_bytes + (column * (bits / 8)) as u64;
                let (at, bytes) = if inside { (at, 16) } else { (0, 0) };
                copy::copy_async_16(to, p.source + at, bytes);
            }
        });
        copy::copy_wait_all();
    }

    /// This thread's vectors, as [`Self::fetch`] has left them.
    #[inline(always)]
    pub(super) fn fetched(r: Region, bits: u32) -> Vectors {
        let (row, step) = Self::row(r, 0);
        let vector = gpu::thread() % r.vectors;
        let mut raw = [[0; 4]; DETECT_LOADS as usize];
        unroll!(i < 8, {
            raw[i] = copy::load_shared_v4(Self::kept(r, bits, row + i as u32 * step, vector));
        });
        raw
    }

    /// Writes the micro-tiles' values, 16 bytes of one a thread, and zeros behind the last of a list.
    #[inline(always)]
    pub(super) fn pack(p: &DetectParams, r: Region, place: Place) {
        let (panel, pieces) = (place.down, MH / 8);
        let [base, end] = Self::base(0);
        let packed = p.packed + panel as u64 * p.stride as u64 * (MH * 2) as u64;
        let (piece, mut column) = (gpu::thread() % pieces, gpu::thread() / pieces);
        while column < r.columns {
            let [bits, rank] = Self::word(column / 32);
            if bits >> (column % 32) & 1 != 0 {
                let before = (bits & ((1 << (column % 32)) - 1)).count_ones();
                let index = base + rank + before;
                let to = packed + index as u64 * (MH * 2) as u64 + piece as u64 * 16;
                global::store_v4(to, Self::column(r, piece, column));
            }
            column += DETECT_THREADS / pieces;
        }
        if end == NO_TILE {
            return;
        }
        let mut index = end + gpu::thread() / pieces;
        while index < end.next_multiple_of(DETECT_PAD) {
            let to = packed + index as u64 * (MH * 2) as u64 + piece as u64 * 16;
            global::store_v4(to, [0; 4]);
            index += DETECT_THREADS / pieces;
        }
    }

    /// Eight rows of a column.
    #[inline(always)]
    fn column(r: Region, piece: u32, column: u32) -> [u32; 4] {
        let mut words = [0; 4];
        unroll!(w < 4, {
            let row = piece * 8 + 2 * w as u32;
            let [low, high] = [row, row + 1].map(|row| {
                copy::load_shared_b16(Self::kept(r, 16, row, column / 8) + column % 8 * 2)
            });
            words[w] = low | high << 16;
        });
        words
    }

    /// Offset of the columns that a region of elements of 4 bytes has micro-tiles in, behind its words of bits.
    const COLUMNS_FOUND: u32 = 256;

    /// The same of elements of 4 bytes, which a product wants contiguous along the columns: rows as wide as a list, without the columns of
    /// empty micro-tiles.
    #[inline(always)]
    pub(super) fn pack_rows(p: &DetectParams, r: Region, place: Place) {
        const { assert!(Self::COLUMNS_FOUND + DETECT_THREADS * 4 <= DETECT_RANKS) };
        let thread = gpu::thread();
        let [base, end] = Self::base(0);
        let found = copy::arena() + Self::COLUMNS_FOUND;
        if thread < r.positions {
            let [bits, rank] = Self::word(thread / 32);
            if bits >> (thread % 32) & 1 != 0 {
                let before = (bits & ((1 << (thread % 32)) - 1)).count_ones();
                copy::store_shared_b32(found + (rank + before) * 4, thread);
            }
        }
        gpu::sync_threads();
        let [last, before] = Self::word(r.positions / 32 - 1);
        let count = before + last.count_ones();
        // Threads for each row, a power of two.
        let wide = 32 - (count.max(1) - 1).leading_zeros();
        let (own, step) = (thread & ((1 << wide) - 1), DETECT_THREADS >> wide);
        let top = p.packed + (place.down * MH) as u64 * p.stride as u64 * 4;
        if own < count {
            let column = copy::load_shared_b32(found + own * 4);
            let mut row = thread >> wide;
            while row < MH {
                let from = Self::kept(r, 32, row, column / 4) + column % 4 * 4;
                let to = top + (row as u64 * p.stride as u64 + (base + own) as u64) * 4;
                global::store_b32(to, copy::load_shared_b32(from));
                row += step;
            }
        }
        let index = end.wrapping_add(thread % DETECT_PAD);
        if end == NO_TILE || index >= end.next_multiple_of(DETECT_PAD) {
            return;
        }
        let mut row = thread / DETECT_PAD;
        while row < MH {
            let to = top + (row as u64 * p.stride as u64 + index as u64) * 4;
            global::store_b32(to, 0);
            row += DETECT_THREADS / DETECT_PAD;
        }
    }
}
