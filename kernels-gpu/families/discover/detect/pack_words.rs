//! Values of the micro-tiles of 4-byte elements, which the product reads contiguous along the columns: rows as wide as
//! a list, without the columns of empty micro-tiles. Shared memory keeps the region until its list positions are known.

use super::{MicroTiles, Place};
use crate::device::prelude::*;
use crate::families::discover::abi::*;

const BITS: u32 = 32;

impl<const MH: u32, const MW: u32, const STEP: u32> MicroTiles<MH, MW, STEP> {
    /// Shared address of a vector of the region. Lanes that read one column read one row each: the swizzle keeps their
    /// vectors in different banks.
    #[inline(always)]
    fn kept_words(r: Region, row: u32, vector: u32) -> u32 {
        copy::dynamic_shared() + DETECT_REGION + (row * r.vectors + (vector ^ (row % 16))) * 16
    }

    /// Copies this thread's vectors to shared memory by `cp.async`, without registers: other thread blocks can load
    /// while this one waits for its list positions. Returns the marks of its columns.
    #[inline(always)]
    pub(super) fn fetch_words(p: &DetectParams, r: Region, place: Place) -> [u32; 4] {
        let (row, step) = Self::row(r, 0);
        let vector = gpu::thread() % r.vectors;
        let column = place.left + vector * (128 / BITS);
        unroll!(i < 8, {
            let row = row + i as u32 * step;
            let to = Self::kept_words(r, row, vector);
            let row = place.top + row;
            if p.flags & DETECT_VECTORS == 0 {
                copy::st_shared_v4(to, Self::vector(p, BITS, row, column));
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
            raw[i] = copy::ld_shared_v4(Self::kept_words(r, row + i as u32 * step, vector));
        });
        Self::add_columns(BITS, p.above, &raw, &mut marks);
        marks
    }

    /// Writes the values, and zeros after the last one of a list.
    #[inline(always)]
    pub(super) fn pack_words(p: &DetectParams, r: Region, place: Place) {
        let thread = gpu::thread();
        let [base, end] = Self::base(0);
        let count = copy::ld_shared_b32(copy::dynamic_shared() + DETECT_BASES + 8);
        // Threads per row, a power of two: a region has at most 256 columns.
        let wide = 32 - (count.max(1) - 1).leading_zeros();
        let (own, step) = (thread & ((1 << wide) - 1), DETECT_THREADS >> wide);
        let top = p.packed().cast::<u32>().at((place.down * MH) as u64 * p.stride as u64);
        if own < count {
            let column = copy::ld_shared_b16(copy::dynamic_shared() + DETECT_FOUND + own * 2);
            let mut row = thread >> wide;
            while row < MH {
                let from = Self::kept_words(r, row, column / 4) + column % 4 * 4;
                let to = top.at(row as u64 * p.stride as u64 + (base + own) as u64);
                let word = copy::ld_shared_b32(from);
                let rounded = p.flags & DETECT_ROUNDED != 0;
                to.st(if rounded { matrix::cvt_rna_tf32(word) } else { word });
                row += step;
            }
        }
        let index = end.wrapping_add(thread % DETECT_PAD);
        if end == NO_TILE || index >= end.next_multiple_of(DETECT_PAD) {
            return;
        }
        let mut row = thread / DETECT_PAD;
        while row < MH {
            top.at(row as u64 * p.stride as u64 + index as u64).st(0);
            row += DETECT_THREADS / DETECT_PAD;
        }
    }
}
