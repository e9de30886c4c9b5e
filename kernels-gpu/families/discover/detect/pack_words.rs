//! Values of the micro-tiles of 4-byte elements, which the product reads contiguous along the columns: rows as wide as
//! a list, without the columns of empty micro-tiles. Shared memory keeps the region until its list positions are known.

use super::{MicroTiles, Place};
use crate::device::prelude::*;
use crate::device::strided::strided;
use crate::families::discover::abi::*;

const BITS: u32 = 32;
/// Rows of a column that a lane reads at once.
const ROWS: u32 = 1;

impl<const MH: u32, const MW: u32, const STEP: u32> MicroTiles<MH, MW, STEP> {
    /// Copies this thread's vectors to shared memory by `cp.async`, without registers: other thread blocks can load
    /// while this one waits for its list positions. Returns the marks of its columns.
    #[inline(always)]
    pub(super) fn fetch_words(p: &DetectParams, r: Region, place: Place) -> [u32; 4] {
        let (row, step) = Self::row(r, 0);
        let vector = gpu::thread() % r.vectors;
        let column = place.left + vector * (128 / BITS);
        unroll!(i < 8, {
            let row = row + i as u32 * step;
            let to = Self::kept(r, ROWS, row, vector);
            let row = place.top + row;
            if p.flags & DETECT_VECTORS == 0 {
                to.st(Self::vector(p, BITS, row, column));
            } else {
                let valid = row < p.rows && column < p.columns;
                let source = p.source().cast::<u32>();
                let at = source.row(row, p.row_bytes).at(column);
                let from = if valid { at } else { source };
                from.cp_async_16_or_zero(to, valid);
            }
        });
        copy::cp_async_wait_all();
        let (mut raw, mut marks) = ([[0; 4]; DETECT_LOADS as usize], [0; 4]);
        unroll!(i < 8, {
            raw[i] = Self::kept(r, ROWS, row + i as u32 * step, vector).ld();
        });
        Self::add_columns(BITS, p.above, &raw, &mut marks);
        marks
    }

    /// Writes the values, and zeros after the last one of a list.
    #[inline(always)]
    pub(super) fn pack_words(p: &DetectParams, r: Region, place: Place) {
        let thread = gpu::thread();
        let [base, end] = Self::base(0).ld();
        let count = Self::found_count().ld();
        // Threads per row, a power of two: a region has at most 256 columns.
        let wide = 32 - (count.max(1) - 1).leading_zeros();
        let (own, step) = (thread & ((1 << wide) - 1), DETECT_THREADS >> wide);
        let top = p.packed().cast::<u32>().at((place.down * MH) as u64 * p.stride as u64);
        if own < count {
            let column = Self::found(own).ld();
            strided(thread >> wide, MH, step, |row| {
                let from = Self::kept(r, ROWS, row, column / 4).cast::<u32>().at(column % 4);
                let to = top.at(row as u64 * p.stride as u64 + (base + own) as u64);
                let word = from.ld();
                let rounded = p.flags & DETECT_ROUNDED != 0;
                to.st(if rounded { matrix::cvt_rna_tf32(word) } else { word });
            });
        }
        let index = end.wrapping_add(thread % DETECT_PAD);
        if end == NO_TILE || index >= end.next_multiple_of(DETECT_PAD) {
            return;
        }
        strided(thread / DETECT_PAD, MH, DETECT_THREADS / DETECT_PAD, |row| {
            top.at(row as u64 * p.stride as u64 + index as u64).st(0);
        });
    }
}
