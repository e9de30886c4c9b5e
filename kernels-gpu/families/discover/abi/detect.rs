//! The module `detect`: which micro-tiles of a matrix are not empty, as lists along a PIT axis (PIT, arXiv 2301.10936,
//! section 3.3). A micro-tile of more than one row is listed along the columns (the k axis of a left operand), one of a
//! single row along the rows (its m axis).

use crate::abi::{Divisor, Dtype, Tile, tiles};

/// Threads of a thread block.
pub const DETECT_THREADS: u32 = 256;
/// Vectors of 16 bytes that a thread has in flight.
pub const DETECT_LOADS: u32 = 8;
/// Lists are filled up to a multiple of this with [`NO_TILE`].
pub const DETECT_PAD: u32 = 64;
/// A place of a list behind its last micro-tile.
pub const NO_TILE: u32 = u32::MAX;
/// Words of bits and of ranks in shared memory at the most.
pub const DETECT_WORDS: u32 = 512;
/// Panels of a region at the most.
pub const DETECT_PANELS: u32 = 64;
/// Choices that a thread block of [`DetectChoices`] takes, and experts at the most.
pub const DETECT_CHOICES: u32 = 1024;

/// Lists ascend, the same at every run; else micro-tiles are listed as thread blocks come.
pub const DETECT_ORDERED: u32 = 1;
/// Rows allow loads of 16 bytes.
pub const DETECT_VECTORS: u32 = 2;
/// Packed elements of 4 bytes are rounded to TF32: no copy engine does that on their way to the product.
pub const DETECT_ROUNDED: u32 = 4;

/// Step of the micro-tiles of a matrix.
pub const STEP_TILES: u32 = 1;
/// Step of bits: an element is one.
pub const STEP_BITS: u32 = 2;
/// Step that also leaves the micro-tiles' values.
pub const STEP_PACK: u32 = 3;
/// Step from the bits that a product has left to lists and values.
pub const STEP_MARKED: u32 = 6;
/// Columns that a thread block of [`MarkedTiles`] takes, a thread each.
pub const MARKED_COLUMNS: u32 = DETECT_THREADS;

/// Rounds of [`DETECT_LOADS`] vectors that a thread goes through, for micro-tiles of `mh` rows. Every thread block
/// waits for others once: with so many, 4096 x 4096 elements are on the GPU at once.
pub const fn detect_rounds(mh: u32, bits: u32, step: u32) -> u32 {
    match step {
        // Of which the values of 4 bytes wait in shared memory.
        STEP_PACK if bits == 32 => 1,
        // Rows of 512 vectors would be too long for the threads.
        _ if bits == 32 && mh != 16 => 4,
        _ => 2,
    }
}

/// Micro-tiles of `MH` x `MW` elements. A thread block looks at a region of 64 KB (128 KB of 4-byte elements, 32 KB of
/// those to pack). `STEP`: [`STEP_TILES`], [`STEP_BITS`] or, for elements of 2 or 4 bytes and `MW` of 1, [`STEP_PACK`].
#[derive(Clone, Copy, Debug)]
pub struct MicroTiles<const MH: u32, const MW: u32, const STEP: u32>;

/// What a region is made of, for elements of so many bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Rows.
    pub rows: u32,
    /// Elements of a row.
    pub columns: u32,
    /// Vectors of a row.
    pub vectors: u32,
    /// Panels: lists that the region adds to.
    pub panels: u32,
    /// Micro-tiles of a panel in the region, a multiple of 32.
    pub positions: u32,
}

impl<const MH: u32, const MW: u32, const STEP: u32> MicroTiles<MH, MW, STEP> {
    /// Whether lists run along the columns.
    pub const ALONG_COLUMNS: bool = MH > 1;

    /// The region for elements of so many bits.
    pub const fn region(bits: u32) -> Region {
        region((MH, MW), bits, STEP)
    }
}

/// The region of micro-tiles of `mh` x `mw` elements of so many bits. Single rows are 16 vectors wide.
pub const fn region((mh, mw): (u32, u32), bits: u32, step: u32) -> Region {
    let all = DETECT_THREADS * DETECT_LOADS * detect_rounds(mh, bits, step);
    let rows = if mh > 1 { mh } else { all / 16 };
    let vectors = all / rows;
    let columns = vectors * (128 / bits);
    Region {
        rows,
        columns,
        vectors,
        panels: if mh > 1 { 1 } else { columns / mw },
        positions: if mh > 1 { columns / mw } else { rows },
    }
}

/// Offsets in shared memory: bits of the micro-tiles, ranks of their words, first place and last word of each panel,
/// then, for [`STEP_PACK`], the columns found, two bytes each, and the region's upper rows.
pub const DETECT_RANKS: u32 = DETECT_WORDS * 4;
/// See [`DETECT_RANKS`].
pub const DETECT_BASES: u32 = 2 * DETECT_WORDS * 4;
/// See [`DETECT_RANKS`].
pub const DETECT_FOUND: u32 = DETECT_BASES + DETECT_PANELS * 8;
/// See [`DETECT_RANKS`].
pub const DETECT_REGION: u32 = DETECT_FOUND + PACK_COLUMNS * 2;
/// Columns of a region that is packed, at the most.
pub const PACK_COLUMNS: u32 = 1024;
/// Quarters of such a region that wait in shared memory; the last one waits in registers. So four thread blocks, 256 KB
/// of a matrix, are on a multiprocessor at once, and 4096 x 4096 elements on the GPU.
pub const PACK_QUARTERS: u32 = 3;
/// Bytes of shared memory that they take.
pub const PACK_BYTES: u32 = PACK_QUARTERS * 16 * 1024;

const _: () = assert!(4 * (DETECT_REGION + PACK_BYTES + 1024) <= 228 << 10);
const _: () = assert!(region((32, 1), 16, STEP_PACK).columns == PACK_COLUMNS);

impl<const MH: u32, const MW: u32, const STEP: u32> Tile for MicroTiles<MH, MW, STEP> {
    const THREADS: u32 = DETECT_THREADS;
    const MIN_BLOCKS: u32 = match STEP {
        STEP_BITS => 3,
        _ => 4,
    };
    const COLUMNS: u32 = 1;
    const BURST: u32 = DETECT_LOADS;
    const BLOCK: (u32, u32) = (MH, MW);
    const STEP: u32 = STEP;
    const ACCESS: u32 = 1;
    fn shared_bytes(dtype: Dtype) -> u32 {
        match (STEP, dtype.bytes()) {
            (STEP_PACK, 4) => DETECT_REGION + DETECT_THREADS * DETECT_LOADS * 16,
            (STEP_PACK, _) => DETECT_REGION + PACK_BYTES,
            _ => DETECT_FOUND,
        }
    }
}

/// Lists and values of the micro-tiles of `MH` rows whose bits a product has left (module `marked`). `status` holds,
/// for each of the panels, [`mark_words`](crate::families::gemm::abi::mark_words) words of bits, and behind all of them
/// a counter of each panel, all zero between launches.
#[derive(Clone, Copy, Debug)]
pub struct MarkedTiles<const MH: u32>;

impl<const MH: u32> Tile for MarkedTiles<MH> {
    const THREADS: u32 = DETECT_THREADS;
    const MIN_BLOCKS: u32 = 4;
    const COLUMNS: u32 = 1;
    const ITEMS: u32 = MARKED_COLUMNS;
    const BURST: u32 = 8;
    const BLOCK: (u32, u32) = (MH, 1);
    const STEP: u32 = STEP_MARKED;
    /// Two sums of each warp, then the columns found.
    const SHARED_BYTES: u32 = 64 + MARKED_COLUMNS * 4;
    const ACCESS: u32 = 1;
}

tiles! {
    { THREADS: DETECT_THREADS, MIN_BLOCKS: 4, COLUMNS: 1, ITEMS: DETECT_CHOICES, ACCESS: 1 }
    /// The rows of sequences that begin at equal distances: a thread block for each.
    DetectLengths = STEP_LENGTHS 4, SHARED_BYTES: 64;
    /// The choices of each expert.
    DetectChoices = STEP_CHOICES 5, SHARED_BYTES: DETECT_CHOICES * 8;
}

/// Parameters of the `detect` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DetectParams {
    /// The matrix, row-major; lengths; choices.
    pub source: u64,
    /// Bytes from one row of the matrix to the next.
    pub row_bytes: u64,
    /// Out: a list for each panel, `stride` words.
    pub lists: u64,
    /// Out: micro-tiles of each panel.
    pub counts: u64,
    /// For each panel `parts` + 1 pairs of words, all zero between launches: what its regions found, and how many have
    /// looked.
    pub status: u64,
    /// Out ([`STEP_PACK`]): values of each place of the lists, one micro-tile each, of 4-byte elements one row of A
    /// each, `stride` places wide; zeros up to a multiple of [`DETECT_PAD`].
    pub packed: u64,
    /// Regions of a row of regions.
    pub across: Divisor,
    /// Rows of the matrix; sequences; choices.
    pub rows: u32,
    /// Columns of the matrix; the distance of sequences.
    pub columns: u32,
    /// Lists; experts.
    pub panels: u32,
    /// Words of a list, a multiple of [`DETECT_PAD`].
    pub stride: u32,
    /// Regions of a panel.
    pub parts: u32,
    /// What makes the top bit of an element whose magnitude is above the threshold.
    pub above: u32,
    /// `DETECT_*`.
    pub flags: u32,
    /// Rows that the next kernel reads, fetched into L2 while thread blocks wait for their places ([`STEP_PACK`]). Zero
    /// where there are none.
    pub ahead_rows: u32,
    /// The first of them, aligned to 16 bytes.
    pub ahead: u64,
    /// Bytes from one to the next.
    pub ahead_row_bytes: u64,
    /// Bytes of each, a multiple of 16.
    pub ahead_bytes: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<DetectParams>() == 112);

#[cfg(test)]
mod tests {
    use super::*;

    /// A region is as large whatever it is cut into, and its bits fit.
    #[test]
    fn regions_are_64_kb_or_twice_that() {
        for bits in [1, 8, 16, 32] {
            for (mh, mw) in [(128, 1), (64, 1), (32, 1), (16, 16), (1, 32), (1, 64)] {
                let r = region((mh, mw), bits, STEP_TILES);
                let kb = if bits == 32 && mh != 16 { 128 } else { 64 };
                assert_eq!(r.rows * r.columns * bits, 8 * kb * 1024);
                assert!(r.vectors <= DETECT_THREADS);
                assert_eq!(r.panels * r.positions * mh * mw, r.rows * r.columns);
                assert_eq!(r.positions % 32, 0);
                assert!(r.panels * r.positions / 32 <= DETECT_WORDS);
                assert!(r.panels <= DETECT_PANELS);
            }
        }
    }
}
