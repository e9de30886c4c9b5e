//! Lists and values of micro-tiles whose bits a product has left: what comes in front of a thread block's columns is
//! counted in the bits, so nobody waits for anybody. Of the matrix only micro-tiles that are not empty are read.

use crate::device::prelude::*;
use crate::families::discover::abi::*;

/// Words of bits of a thread block's columns.
const WORDS: u32 = MARKED_COLUMNS / 32;
/// Offset of the columns found.
const FOUND: u32 = 64;

/// The row block and the part of it that a thread block has, and what lies where.
#[derive(Clone, Copy)]
struct Part {
    row_block: u32,
    part: u32,
    /// First word of the row block's bits, and how many there are.
    marks: u64,
    words: u32,
}

/// Micro-tiles in front of a part's, and its own.
#[derive(Clone, Copy)]
struct Found {
    before: u32,
    count: u32,
}

impl<const MH: u32> MarkedTiles<MH> {
    /// Pieces of eight rows of a micro-tile.
    const PIECES: u32 = MH / 8;

    #[inline(always)]
    fn part(p: &DetectParams) -> Part {
        let (row_block, part) = p.across.of(gpu::block_x());
        let words = p.columns.div_ceil(64) * 2;
        Part { row_block, part, marks: p.status + row_block as u64 * words as u64 * 4, words }
    }

    /// Counts the bits, and leaves the part's columns in shared memory, in order. A thread has a column.
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

    /// Eight rows of a column, from row `row` of the matrix on.
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

    /// Writes list and values of the part's micro-tiles: a warp takes sixteen of them, two pieces of each.
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

    /// Behind the last micro-tile of the row block: its number, places without one, zeros.
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
        // Its last barrier: nobody of this thread block reads bits any more.
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
