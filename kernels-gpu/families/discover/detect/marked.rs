//! Lists and values of micro-tiles from the bits that a product has stored. Micro-tiles before a thread block's columns
//! are counted from the bits, so thread blocks do not wait for each other. Only nonempty micro-tiles of the matrix are
//! read.

use crate::device::prelude::*;
use crate::families::discover::abi::*;

/// Words of bits for a thread block's columns.
const WORDS: u32 = MARKED_COLUMNS / 32;
/// Offset in shared memory of the columns found.
const FOUND: u32 = 64;

/// The row block of a thread block, its part of the columns, and the bits.
#[derive(Clone, Copy)]
struct Part {
    row_block: u32,
    part: u32,
    /// Address of the row block's bits, and their number of words.
    marks: u64,
    words: u32,
}

/// Number of micro-tiles before the part, and in the part.
#[derive(Clone, Copy)]
struct Found {
    before: u32,
    count: u32,
}

impl<const MH: u32> MarkedTiles<MH> {
    /// Pieces of eight rows per micro-tile.
    const PIECES: u32 = MH / 8;

    #[inline(always)]
    fn part(p: &DetectParams) -> Part {
        let (row_block, part) = p.across.of(gpu::block_x());
        let words = p.columns.div_ceil(64) * 2;
        Part { row_block, part, marks: p.status + row_block as u64 * words as u64 * 4, words }
    }

    /// Counts the bits, and stores the part's columns in shared memory, in order. One thread per column.
    #[inline(always)]
    fn find(own: Part) -> Found {
        let (thread, lane) = (gpu::thread(), gpu::thread() % 32);
        let first = own.part * WORDS;
        let load = |word: u32| global::ld_cg_b32(own.marks + word as u64 * 4, word < own.words);
        let (mut ahead, mut word) = (0, thread);
        while word < first {
            ahead += load(word).count_ones();
            word += DETECT_THREADS;
        }
        let bits = load(first + thread / 32);
        let ahead = warp::sum(ahead);
        if lane == 0 {
            let to = copy::dynamic_shared() + thread / 32 * 4;
            copy::st_shared_b32(to, ahead);
            copy::st_shared_b32(to + 32, bits.count_ones());
        }
        gpu::sync_threads();
        let (mut before, mut rank, mut count) = (0, 0, 0);
        unroll!(w < 8, {
            let from = copy::dynamic_shared() + w as u32 * 4;
            before += copy::ld_shared_b32(from);
            let here = copy::ld_shared_b32(from + 32);
            rank += if (w as u32) < thread / 32 { here } else { 0 };
            count += here;
        });
        if bits >> lane & 1 != 0 {
            rank += (bits & ((1 << lane) - 1)).count_ones();
            let column = own.part * MARKED_COLUMNS + thread;
            copy::st_shared_b32(copy::dynamic_shared() + FOUND + rank * 4, column);
        }
        gpu::sync_threads();
        Found { before, count }
    }

    /// Counts this part as done with the row block's bits; the last one clears them for the next product. One warp.
    #[inline(always)]
    fn end(p: &DetectParams, own: Part) {
        let lane = gpu::thread() % 32;
        let counters = p.status + p.panels as u64 * own.words as u64 * 4;
        let counter = counters + own.row_block as u64 * 4;
        let mut before = 0;
        if lane == 0 {
            before = global::atom_add(counter, 1);
        }
        if warp::uniform(before) + 1 == p.parts {
            let mut word = lane;
            while word < own.words {
                global::st_b32(own.marks + word as u64 * 4, 0);
                word += 32;
            }
            global::st_b32_if(counter, 0, lane == 0);
        }
    }

    /// Loads eight rows of a column, from row `row` of the matrix on.
    #[inline(always)]
    fn column(p: &DetectParams, row: u32, column: u32) -> [u32; 4] {
        let at = p.source + row as u64 * p.row_bytes + column as u64 * 2;
        let mut halves = [0; 8];
        unroll!(i < 8, {
            let at = at + i as u64 * p.row_bytes;
            halves[i] = global::ld_cg_b16(at, row + (i as u32) < p.rows);
        });
        [0, 2, 4, 6].map(|i| halves[i] | halves[i + 1] << 16)
    }

    /// Writes list and values of the part's micro-tiles: two pieces of sixteen micro-tiles per warp.
    #[inline(always)]
    fn write(p: &DetectParams, own: Part, found: Found) {
        let (thread, lane) = (gpu::thread(), gpu::thread() % 32);
        let place = own.row_block as u64 * p.stride as u64 + found.before as u64;
        let listed = |i: u32| copy::ld_shared_b32(copy::dynamic_shared() + FOUND + i * 4);
        if thread < found.count {
            global::st_b32(p.lists + (place + thread as u64) * 4, listed(thread));
        }
        let pairs = Self::PIECES / 2;
        let mut unit = thread / 32;
        while unit < found.count.div_ceil(16) * pairs {
            let (index, piece) = (unit / pairs * 16 + lane / 2, unit % pairs * 2 + lane % 2);
            if index < found.count {
                let row = own.row_block * MH + piece * 8;
                let to = (place + index as u64) * (MH * 2) as u64 + piece as u64 * 16;
                global::st_v4(p.packed + to, Self::column(p, row, listed(index)));
            }
            unit += DETECT_THREADS / 32;
        }
    }

    /// Writes the number of micro-tiles of the row block, and pads its list and values with [`NO_TILE`] and zeros.
    #[inline(always)]
    fn pad(p: &DetectParams, own: Part, found: Found) {
        let end = found.before + found.count;
        if gpu::thread() == 0 {
            global::st_b32(p.counts + own.row_block as u64 * 4, end);
        }
        let first = own.row_block as u64 * p.stride as u64 + end as u64;
        let left = end.next_multiple_of(DETECT_PAD) - end;
        if gpu::thread() < left {
            let to = p.lists + (first + gpu::thread() as u64) * 4;
            global::st_b32(to, NO_TILE);
        }
        let mut piece = gpu::thread();
        while piece < left * Self::PIECES {
            let to = p.packed + first * (MH * 2) as u64 + piece as u64 * 16;
            global::st_v4(to, [0; 4]);
            piece += DETECT_THREADS;
        }
    }
}

impl<W: WalkInfo, E: ElemInfo, const MH: u32> Kernel<W, E, DetectParams> for MarkedTiles<MH> {
    #[inline(always)]
    unsafe fn run(p: &DetectParams, _: u64) {
        let own = Self::part(p);
        grid::launch_dependents();
        grid::wait_dependency();
        // After the last barrier of `find` this thread block no longer reads bits.
        let found = Self::find(own);
        if gpu::thread() < 32 {
            Self::end(p, own);
        }
        Self::write(p, own, found);
        if own.part + 1 == p.parts {
            Self::pad(p, own, found);
        }
    }
}
