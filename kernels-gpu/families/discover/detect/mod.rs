//! Detection of nonempty micro-tiles in one pass over the matrix. A thread block loads a region, sets a bit for each
//! nonempty micro-tile in shared memory, and appends these micro-tiles to their lists. For threshold zero any bit but
//! the sign makes an element nonzero: NaN counts, both zeros do not.

mod list;
mod pack;
mod pack_words;
mod rows;

use crate::device::prelude::*;
use crate::families::discover::abi::*;
use crate::families::discover::elements::{gathered, mark, vector};

buffers! {
    // `Detector::detect` and the products that search their operands check the shape of the source, and that the index
    // has the size that the launch requires (`host/core/dynamic`). `DetectLaunch` gives each panel a list and status words,
    // and sets `DETECT_VECTORS` for aligned rows (`host/core/families/discover/detect.rs`).
    unsafe DetectParams {
        source: u8, ReadWrite;
        lists: u32, ReadWrite;
        counts: u32, ReadWrite;
        status: u64, Fresh;
        packed: u8, ReadWrite;
        ahead: u8, ReadWrite;
    }
}

/// Vectors of a thread: [`DETECT_LOADS`] rows of the same columns.
type Vectors = [[u32; 4]; DETECT_LOADS as usize];

/// Shared memory at one of the offsets `DETECT_*`; the bits of the micro-tiles are at 0.
#[inline(always)]
fn shared(offset: u32) -> Shared<u32> {
    // SAFETY: [`MicroTiles::shared_bytes`] contains these areas. The test `regions_are_64_kb_or_twice_that` checks that
    // the bits and panels of each region fit.
    unsafe { Shared::dynamic(offset) }
}

/// Mask of the first `count` elements of a word.
#[inline(always)]
fn first_elements(count: u32, bits: u32) -> u32 {
    if count * bits >= 32 { u32::MAX } else { (1 << (count * bits)) - 1 }
}

/// Position of a region: indices across and down, first row and column.
#[derive(Clone, Copy)]
struct Place {
    across: u32,
    down: u32,
    top: u32,
    left: u32,
}

impl<const MH: u32, const MW: u32, const STEP: u32> MicroTiles<MH, MW, STEP> {
    #[inline(always)]
    fn bits<E: ElemInfo>() -> u32 {
        if STEP == STEP_BITS { 1 } else { E::DTYPE.bytes() as u32 * 8 }
    }

    /// Parameters of this thread block's item: the matrices of a batch are contiguous, and so are their lists.
    /// Micro-tiles of several rows do not need it: their lists belong to row blocks of the whole batch.
    #[inline(always)]
    fn of_item(p: &DetectParams) -> DetectParams {
        if STEP != STEP_TILES || Self::ALONG_COLUMNS {
            return *p;
        }
        let item = gpu::block_y() as u64;
        let panels = item * p.panels as u64;
        DetectParams {
            source: p.source + item * p.rows as u64 * p.row_bytes,
            lists: p.lists + panels * p.stride as u64 * 4,
            counts: p.counts + panels * 4,
            status: p.status + panels * (p.parts as u64 + 1) * 8,
            ..*p
        }
    }

    /// Region of this thread block; regions are numbered row by row over the matrix.
    #[inline(always)]
    fn place(p: &DetectParams, r: Region) -> Place {
        let (down, across) = p.across.of(gpu::block_x());
        Place { across, down, top: down * r.rows, left: across * r.columns }
    }

    /// Loads 16 bytes from column `column` of row `row` on; zeros outside the matrix, except past the columns of an
    /// aligned row, and of 1-bit elements up to the end of the last word.
    #[inline(always)]
    fn vector(p: &DetectParams, bits: u32, row: u32, column: u32) -> [u32; 4] {
        let columns = (column, p.columns, row < p.rows);
        let aligned = p.flags & DETECT_VECTORS != 0;
        vector(p.source().row(row, p.row_bytes), columns, bits, aligned)
    }

    /// This thread's first row of a round, relative to the region, and the distance to the next.
    #[inline(always)]
    fn row(r: Region, round: u32) -> (u32, u32) {
        let step = DETECT_THREADS / r.vectors;
        (gpu::thread() / r.vectors + round * DETECT_LOADS * step, step)
    }

    #[inline(always)]
    fn load(p: &DetectParams, r: Region, bits: u32, place: Place, round: u32) -> Vectors {
        let (row, step) = Self::row(r, round);
        let vector = gpu::thread() % r.vectors;
        let (row, column) = (place.top + row, place.left + vector * (128 / bits));
        let mut raw = [[0; 4]; DETECT_LOADS as usize];
        unroll!(i < 8, {
            raw[i] = Self::vector(p, bits, row + i as u32 * step, column);
        });
        raw
    }

    /// For each word of a vector, the bits of its elements inside the matrix.
    #[inline(always)]
    fn inside(p: &DetectParams, r: Region, bits: u32, place: Place) -> [u32; 4] {
        let column = place.left + gpu::thread() % r.vectors * (128 / bits);
        let of_word = 32 / bits;
        [0, 1, 2, 3].map(|w| {
            let left = p.columns.saturating_sub(column + w * of_word);
            first_elements(left.min(of_word), bits)
        })
    }

    /// Adds a round of columns: the marks of each word of a vector, combined over all rows.
    #[inline(always)]
    fn add_columns(bits: u32, above: u32, raw: &Vectors, marks: &mut [u32; 4]) {
        unroll!(i < 8, {
            unroll!(w < 4, { marks[w] |= mark(raw[i][w], bits, above) });
        });
    }

    /// Sets the bits of this thread's columns in shared memory.
    #[inline(always)]
    fn set_columns(r: Region, bits: u32, marks: [u32; 4]) {
        let vector = gpu::thread() % r.vectors;
        let of_vector = 128 / bits;
        if bits == 1 {
            unroll!(w < 4, {
                if MW == 1 {
                    Self::set(vector * 128 + 32 * w as u32, marks[w]);
                } else {
                    let low = u32::from(marks[w] & 0xffff != 0);
                    let high = u32::from(marks[w] >> 16 != 0);
                    Self::set(vector * 8 + 2 * w as u32, low | high << 1);
                }
            });
        } else if MW == 1 {
            let mut found = 0;
            unroll!(w < 4, {
                found |= gathered(marks[w], bits) << (w as u32 * (32 / bits));
            });
            Self::set(vector * of_vector, found);
        } else {
            let any = marks[0] | marks[1] | marks[2] | marks[3];
            Self::set(vector * of_vector / MW, u32::from(any != 0));
        }
    }

    /// Processes a round of single rows. Neighboring lanes that share a micro-tile vote; one lane per micro-tile sets
    /// its bits.
    #[inline(always)]
    fn set_rows(
        p: &DetectParams,
        (r, bits): (Region, u32),
        raw: &Vectors,
        inside: [u32; 4],
        round: u32,
    ) {
        let (row, step) = Self::row(r, round);
        if bits == 1 {
            let vector = gpu::thread() % r.vectors;
            unroll!(i < 8, {
                let position = row + i as u32 * step;
                unroll!(w < 4, {
                    let here = raw[i][w] & inside[w];
                    let column_block = (vector * 128 + w as u32 * 32) / MW;
                    Self::set(column_block * r.positions + position, u32::from(here != 0));
                });
            });
            return;
        }
        // A row has 16 lanes, so a warp has two rows: bit 16 x + l of a ballot is lane l of row x.
        let lanes = MW * bits / 128;
        let lane = gpu::thread() % 32;
        let first = gpu::thread() / 32 * 2;
        let own = ((1u32 << lanes) - 1) << (lane * lanes % 16);
        let mut found = [0u32; 4];
        unroll!(i < 8, {
            let mut any = 0;
            unroll!(w < 4, { any |= mark(raw[i][w], bits, p.above) & inside[w] });
            let vote = warp::ballot(any != 0);
            let two = u32::from(vote & own != 0) | u32::from(vote >> 16 & own != 0) << 1;
            found[i / 2] |= two << (16 * (i as u32 % 2) + first);
        });
        if lane < r.panels {
            unroll!(w < 4, {
                let at = round * 16 * DETECT_LOADS + 32 * w as u32;
                Self::set(lane * r.positions + at, found[w]);
            });
        }
    }

    /// Sets bits from bit `at` on, within one word.
    #[inline(always)]
    fn set(at: u32, bits: u32) {
        if bits != 0 {
            shared(0).at(at / 32).red_or(bits << (at % 32));
        }
    }

    #[inline(always)]
    fn round(
        p: &DetectParams,
        (r, bits, inside): (Region, u32, [u32; 4]),
        place: Place,
        round: u32,
        marks: &mut [u32; 4],
    ) {
        let raw = Self::load(p, r, bits, place, round);
        if Self::ALONG_COLUMNS {
            Self::add_columns(bits, p.above, &raw, marks);
        } else {
            Self::set_rows(p, (r, bits), &raw, inside, round);
        }
    }

    #[inline(always)]
    fn clear() {
        unroll!(i < 2, { shared(0).at(gpu::thread() + i as u32 * DETECT_THREADS).st(0) });
        gpu::sync_threads();
    }
}

impl<W: WalkInfo, E: ElemInfo, const MH: u32, const MW: u32, const STEP: u32>
    Kernel<W, E, DetectParams> for MicroTiles<MH, MW, STEP>
{
    #[inline(always)]
    unsafe fn run(p: &DetectParams, _: Maps) {
        let p = &Self::of_item(p);
        let bits = Self::bits::<E>();
        let r = Self::region(bits);
        let place = Self::place(p, r);
        grid::launch_dependents();
        Self::clear();
        grid::wait_dependency();
        let inside = Self::inside(p, r, bits, place);
        let mut marks = [0; 4];
        let mut late = [[0; 4]; 4];
        match (STEP, bits) {
            (STEP_PACK, 32) => marks = Self::fetch_words(p, r, place),
            (STEP_PACK, _) => (marks, late) = Self::fetch(p, r, place),
            _ => {
                // Not unrolled: straight code would issue all loads at once and spill registers.
                let mut round = 0;
                while round < detect_rounds(MH, bits, STEP) {
                    Self::round(p, (r, bits, inside), place, round, &mut marks);
                    round += 1;
                }
            }
        }
        if Self::ALONG_COLUMNS {
            unroll!(w < 4, { marks[w] &= inside[w] });
            Self::set_columns(r, bits, marks);
        }
        let before = Self::write_lists(p, r, place);
        if STEP == STEP_PACK {
            // Makes the columns found visible in shared memory.
            gpu::sync_threads();
            match bits {
                32 => Self::pack_words(p, r, place),
                _ => Self::pack(p, r, place, &late),
            }
        }
        Self::end_release(p, place, before);
    }
}
