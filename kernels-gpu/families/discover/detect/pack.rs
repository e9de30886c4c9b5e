//! Values of the micro-tiles, each contiguous, in list order: a product reads them as A's transpose. The SM keeps the
//! region until its list positions are known, the upper rows in shared memory, the last quarter in registers.

use super::{MicroTiles, Place};
use crate::device::prelude::*;
use crate::families::discover::abi::*;
use crate::families::discover::elements::mark;

/// The vectors of a thread that stay in registers.
type Late = [[u32; 4]; 4];

const BITS: u32 = 16;

impl<const MH: u32, const MW: u32, const STEP: u32> MicroTiles<MH, MW, STEP> {
    /// First row of the region that is not in shared memory.
    const LATE: u32 = MH / 4 * PACK_QUARTERS;

    /// Shared address of a vector of the region. Lanes that read one column read eight rows each: the swizzle keeps
    /// their vectors in different banks.
    #[inline(always)]
    fn kept(r: Region, row: u32, vector: u32) -> u32 {
        copy::dynamic_shared() + DETECT_REGION + (row * r.vectors + (vector ^ (row / 8 % 16))) * 16
    }

    /// Fetches the region. Returns the marks of this thread's columns, and its vectors in registers.
    #[inline(always)]
    pub(super) fn fetch(p: &DetectParams, r: Region, place: Place) -> ([u32; 4], Late) {
        let late = Self::copy(p, r, place);
        copy::cp_async_wait_all();
        let marks = Self::marks(p, r, &late);
        Self::fetch_ahead(p);
        (marks, late)
    }

    /// Copies this thread's upper vectors to shared memory by `cp.async`, and loads the others into registers. Rows
    /// without 16-byte alignment use separate code, so that the instructions of the common path are contiguous.
    #[inline(always)]
    fn copy(p: &DetectParams, r: Region, place: Place) -> Late {
        let (first, step) = Self::row(r, 0);
        let vector = gpu::thread() % r.vectors;
        let (row, column) = (place.top + first, place.left + vector * (128 / BITS));
        if p.flags & DETECT_VECTORS == 0 {
            return Self::copy_elements(p, r, place);
        }
        let source = p.source().cast::<u16>();
        let at = source.row(row, p.row_bytes).at(column);
        let place = |i: usize| {
            let further = i as u32 * step;
            let valid = row + further < p.rows && column < p.columns;
            let at = at.row(further, p.row_bytes);
            (if valid { at } else { source }, valid)
        };
        unroll!(quarter < 3, {
            unroll!(i < 4, {
                let (from, valid) = place(4 * quarter + i);
                let to = Self::kept(r, first + (4 * quarter + i) as u32 * step, vector);
                from.cp_async_16_or_zero(to, valid);
            });
        });
        let mut late = [[0; 4]; 4];
        unroll!(i < 4, {
            let (from, valid) = place(12 + i);
            late[i] = from.cast::<[u32; 4]>().ld_once_if(valid);
        });
        late
    }

    /// [`Self::copy`] element by element.
    #[inline(always)]
    fn copy_elements(p: &DetectParams, r: Region, place: Place) -> Late {
        let (first, step) = Self::row(r, 0);
        let vector = gpu::thread() % r.vectors;
        let column = place.left + vector * (128 / BITS);
        let mut row = first;
        while row < Self::LATE {
            let words = Self::vector(p, BITS, place.top + row, column);
            copy::st_shared_v4(Self::kept(r, row, vector), words);
            row += step;
        }
        let mut late = [[0; 4]; 4];
        unroll!(i < 4, {
            let row = place.top + Self::LATE + first + i as u32 * step;
            late[i] = Self::vector(p, BITS, row, column);
        });
        late
    }

    /// Marks of this thread's columns, combined over all of its rows.
    #[inline(always)]
    fn marks(p: &DetectParams, r: Region, late: &Late) -> [u32; 4] {
        let (first, step) = Self::row(r, 0);
        let vector = gpu::thread() % r.vectors;
        let mut marks = [0; 4];
        unroll!(quarter < 3, {
            unroll!(i < 4, {
                let row = first + (4 * quarter as u32 + i as u32) * step;
                let raw = copy::ld_shared_v4(Self::kept(r, row, vector));
                unroll!(w < 4, { marks[w] |= mark(raw[w], BITS, p.above) });
            });
        });
        unroll!(i < 4, {
            unroll!(w < 4, { marks[w] |= mark(late[i][w], BITS, p.above) });
        });
        marks
    }

    /// Prefetches the rows of the next kernel into L2: memory would be idle while thread blocks wait for list
    /// positions. The last warp has the least work, so its threads come first.
    #[inline(always)]
    fn fetch_ahead(p: &DetectParams) {
        if !bulk::prefetches_lines() {
            return;
        }
        let mut row = gpu::block_x() + (DETECT_THREADS - 1 - gpu::thread()) * gpu::grid_x();
        while row < p.ahead_rows {
            p.ahead().row(row, p.ahead_row_bytes).bulk_prefetch(p.ahead_bytes);
            row += gpu::grid_x() * DETECT_THREADS;
        }
    }

    /// Writes the micro-tiles' values, 16 bytes of one per thread, and zeros after the last one of a list.
    #[inline(always)]
    pub(super) fn pack(p: &DetectParams, r: Region, place: Place, late: &Late) {
        let [base, end] = Self::base(0);
        let count = copy::ld_shared_b32(copy::dynamic_shared() + DETECT_BASES + 8);
        let bytes = MH * 2;
        let packed = p.packed().bytes(place.down as u64 * p.stride as u64 * bytes as u64);
        let packed = packed.cast::<[u32; 4]>();
        let own = packed.row(base, bytes);
        let found =
            |index: u32| copy::ld_shared_b16(copy::dynamic_shared() + DETECT_FOUND + index * 2);
        let pieces = MH / 8;
        let (piece, each) = (gpu::thread() % pieces, DETECT_THREADS / pieces);
        let mut index = gpu::thread() / pieces;
        while index < count {
            if piece * 8 < Self::LATE {
                let to = own.bytes(index * bytes + piece * 16);
                to.st(Self::column(r, piece, found(index)));
            }
            index += each;
        }
        if end != NO_TILE {
            let mut index = end + gpu::thread() / pieces;
            while index < end.next_multiple_of(DETECT_PAD) {
                packed.row(index, bytes).at(piece).st([0; 4]);
                index += each;
            }
        }
        gpu::sync_threads();
        Self::take_late(r, late);
        gpu::sync_threads();
        let pieces = pieces / 4;
        let (piece, each) = (gpu::thread() % pieces, DETECT_THREADS / pieces);
        let mut index = gpu::thread() / pieces;
        while index < count {
            let to = own.bytes(index * bytes + Self::LATE * 2 + piece * 16);
            to.st(Self::column(r, piece, found(index)));
            index += each;
        }
    }

    /// Stores the vectors of the last rows in the shared memory of the first rows.
    #[inline(always)]
    fn take_late(r: Region, late: &Late) {
        let (first, step) = Self::row(r, 0);
        let vector = gpu::thread() % r.vectors;
        unroll!(i < 4, {
            let to = Self::kept(r, first + i as u32 * step, vector);
            copy::st_shared_v4(to, late[i]);
        });
    }

    /// Loads eight rows of a column.
    #[inline(always)]
    fn column(r: Region, piece: u32, column: u32) -> [u32; 4] {
        let mut words = [0; 4];
        unroll!(w < 4, {
            let row = piece * 8 + 2 * w as u32;
            let [low, high] = [row, row + 1]
                .map(|row| copy::ld_shared_b16(Self::kept(r, row, column / 8) + column % 8 * 2));
            words[w] = low | high << 16;
        });
        words
    }
}
