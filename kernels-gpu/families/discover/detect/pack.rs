//! Values of the micro-tiles, each contiguous, in list order: a product reads them as A's transpose. The SM keeps the
//! region until its list positions are known, the upper rows in shared memory, the last quarter in registers.

use super::{MicroTiles, Place, shared};
use crate::device::prelude::*;
use crate::device::strided::strided;
use crate::families::discover::abi::*;
use crate::families::discover::elements::mark;

/// The vectors of a thread that stay in registers.
type Late = [[u32; 4]; 4];

const BITS: u32 = 16;
/// Rows of a column that a lane reads at once.
const ROWS: u32 = 8;

impl<const MH: u32, const MW: u32, const STEP: u32> MicroTiles<MH, MW, STEP> {
    /// First row of the region that is not in shared memory.
    const LATE: u32 = MH / 4 * PACK_QUARTERS;

    /// A vector of the region in shared memory. Lanes that read one column read `rows` rows each: the swizzle keeps their
    /// vectors in different banks.
    #[inline(always)]
    pub(super) fn kept(r: Region, rows: u32, row: u32, vector: u32) -> Shared<[u32; 4]> {
        shared(DETECT_REGION).cast().at(row * r.vectors + (vector ^ (row / rows % 16)))
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
                let to = Self::kept(r, ROWS, first + (4 * quarter + i) as u32 * step, vector);
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
        // Not `strided`: `detect_pack_128x1` would spill a register.
        let mut row = first;
        while row < Self::LATE {
            let words = Self::vector(p, BITS, place.top + row, column);
            Self::kept(r, ROWS, row, vector).st(words);
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
                let raw = Self::kept(r, ROWS, row, vector).ld();
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
        let first = gpu::block_x() + (DETECT_THREADS - 1 - gpu::thread()) * gpu::grid_x();
        strided(first, p.ahead_rows, gpu::grid_x() * DETECT_THREADS, |row| {
            p.ahead().row(row, p.ahead_row_bytes).bulk_prefetch(p.ahead_bytes);
        });
    }

    /// Writes the micro-tiles' values, 16 bytes of one per thread, and zeros after the last one of a list.
    #[inline(always)]
    pub(super) fn pack(p: &DetectParams, r: Region, place: Place, late: &Late) {
        let [base, end] = Self::base(0).ld();
        let count = Self::found_count().ld();
        let bytes = MH * 2;
        let packed = p.packed().bytes(place.down as u64 * p.stride as u64 * bytes as u64);
        let packed = packed.cast::<[u32; 4]>();
        let own = packed.row(base, bytes);
        let pieces = MH / 8;
        let (piece, each) = (gpu::thread() % pieces, DETECT_THREADS / pieces);
        strided(gpu::thread() / pieces, count, each, |index| {
            if piece * 8 < Self::LATE {
                let to = own.bytes(index * bytes + piece * 16);
                to.st(Self::column(r, piece, Self::found(index).ld()));
            }
        });
        if end != NO_TILE {
            let padded = end.next_multiple_of(DETECT_PAD);
            strided(end + gpu::thread() / pieces, padded, each, |index| {
                packed.row(index, bytes).at(piece).st([0; 4]);
            });
        }
        gpu::sync_threads();
        Self::take_late(r, late);
        gpu::sync_threads();
        let pieces = pieces / 4;
        let (piece, each) = (gpu::thread() % pieces, DETECT_THREADS / pieces);
        strided(gpu::thread() / pieces, count, each, |index| {
            let to = own.bytes(index * bytes + Self::LATE * 2 + piece * 16);
            to.st(Self::column(r, piece, Self::found(index).ld()));
        });
    }

    /// Stores the vectors of the last rows in the shared memory of the first rows.
    #[inline(always)]
    fn take_late(r: Region, late: &Late) {
        let (first, step) = Self::row(r, 0);
        let vector = gpu::thread() % r.vectors;
        unroll!(i < 4, {
            Self::kept(r, ROWS, first + i as u32 * step, vector).st(late[i]);
        });
    }

    /// Loads eight rows of a column.
    #[inline(always)]
    fn column(r: Region, piece: u32, column: u32) -> [u32; 4] {
        let mut words = [0; 4];
        unroll!(w < 4, {
            let row = piece * 8 + 2 * w as u32;
            let [low, high] = [row, row + 1]
                .map(|row| Self::kept(r, ROWS, row, column / 8).cast::<u16>().at(column % 8).ld());
            words[w] = low | high << 16;
        });
        words
    }
}
