//! The module `detect`: lists of the nonempty micro-tiles of a matrix along a PIT axis (PIT, arXiv 2301.10936, section
//! 3.3). Micro-tiles of several rows are listed along the columns (the k axis of a left operand), those of a single row
//! along the rows (its m axis).

use crate::abi::{Divisor, Dtype, Tile, tiles};

/// Threads in a thread block.
pub const DETECT_THREADS: u32 = 256;
/// Vectors of 16 bytes in flight per thread.
pub const DETECT_LOADS: u32 = 8;
/// Lists are padded to a multiple of this with [`NO_TILE`].
pub const DETECT_PAD: u32 = 64;
/// Padding of a list after its last micro-tile.
pub const NO_TILE: u32 = u32::MAX;
/// Max words of bits, and of ranks, in shared memory.
pub const DETECT_WORDS: u32 = 512;
/// Max panels of a region.
pub const DETECT_PANELS: u32 = 64;
/// Choices per thread block of [`DetectChoices`], and max experts.
pub const DETECT_CHOICES: u32 = 1024;

/// Lists are ascending and reproducible; otherwise micro-tiles are listed in the order in which thread blocks finish.
pub const DETECT_ORDERED: u32 = 1;
/// Rows allow loads of 16 bytes.
pub const DETECT_VECTORS: u32 = 2;
/// Packed elements of 4 bytes are rounded to TF32: copy engines do not round them on the way to the product.
pub const DETECT_ROUNDED: u32 = 4;

/// Step of the micro-tiles of a matrix.
pub const STEP_TILES: u32 = 1;
/// Step of bits: one bit per element.
pub const STEP_BITS: u32 = 2;
/// Step that also stores the values of the micro-tiles.
pub const STEP_PACK: u32 = 3;

/// Rounds of [`DETECT_LOADS`] vectors per thread, for micro-tiles of `mh` rows. Each thread block waits once for
/// preceding ones. With this number of rounds, 4096 x 4096 elements are resident on the GPU at once.
pub const fn detect_rounds(mh: u32, bits: u32, step: u32) -> u32 {
    match step {
        // Values of 4 bytes are kept in shared memory during the wait.
        STEP_PACK if bits == 32 => 1,
        // With `mh` 16, four rounds would give rows of 512 vectors, more than the threads.
        _ if bits == 32 && mh != 16 => 4,
        _ => 2,
    }
}

/// Micro-tiles of `MH` x `MW` elements. A thread block processes a region of 64 KB (128 KB of 4-byte elements, 32 KB if
/// they are packed). `STEP`: [`STEP_TILES`], [`STEP_BITS`] or, for elements of 2 or 4 bytes and `MW` of 1,
/// [`STEP_PACK`].
#[derive(Clone, Copy, Debug)]
pub struct MicroTiles<const MH: u32, const MW: u32, const STEP: u32>;

/// Shape of a region, for elements of a given number of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Number of rows.
    pub rows: u32,
    /// Elements per row.
    pub columns: u32,
    /// Vectors per row.
    pub vectors: u32,
    /// Panels: row or column blocks, each with its own list.
    pub panels: u32,
    /// Micro-tiles per panel in the region, a multiple of 32.
    pub positions: u32,
}

impl<const MH: u32, const MW: u32, const STEP: u32> MicroTiles<MH, MW, STEP> {
    /// Whether lists run along the columns.
    pub const ALONG_COLUMNS: bool = MH > 1;

    /// The region for elements of `bits` bits.
    pub const fn region(bits: u32) -> Region {
        region((MH, MW), bits, STEP)
    }
}

/// The region for micro-tiles of `mh` x `mw` elements of `bits` bits. For `mh` 1, rows are 16 vectors wide.
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

/// Offsets in shared memory: bits of the micro-tiles; ranks of their words; list position and length of each panel;
/// then, for [`STEP_PACK`], the columns found, two bytes each, and the region's upper rows.
pub const DETECT_RANKS: u32 = DETECT_WORDS * 4;
/// See [`DETECT_RANKS`].
pub const DETECT_BASES: u32 = 2 * DETECT_WORDS * 4;
/// See [`DETECT_RANKS`].
pub const DETECT_FOUND: u32 = DETECT_BASES + DETECT_PANELS * 8;
/// See [`DETECT_RANKS`].
pub const DETECT_REGION: u32 = DETECT_FOUND + PACK_COLUMNS * 2;
/// Max columns of a region that is packed.
pub const PACK_COLUMNS: u32 = 1024;
/// Quarters of such a region in shared memory; the last quarter is in registers. Four thread blocks, 256 KB of a
/// matrix, then fit on an SM, and 4096 x 4096 elements on the GPU.
pub const PACK_QUARTERS: u32 = 3;
/// Bytes of shared memory of these quarters.
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

tiles! {
    { THREADS: DETECT_THREADS, MIN_BLOCKS: 4, COLUMNS: 1, ITEMS: DETECT_CHOICES, ACCESS: 1 }
    /// Rows of sequences at equal distances: one thread block per sequence.
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
    /// Out: a list for each panel, `stride` words each.
    pub lists: u64,
    /// Out: number of micro-tiles in each panel.
    pub counts: u64,
    /// For each panel `parts` + 1 pairs of words, all zero between launches: the counts of its regions, then the number
    /// of regions that have read them.
    pub status: u64,
    /// Out ([`STEP_PACK`]): values for each list position. 2-byte elements: one micro-tile each. 4-byte elements: rows
    /// of A, `stride` elements each. Zeros up to a multiple of [`DETECT_PAD`].
    pub packed: u64,
    /// Regions across the matrix.
    pub across: Divisor,
    /// Rows of the matrix; number of sequences; number of choices.
    pub rows: u32,
    /// Columns of the matrix; distance of sequences in rows.
    pub columns: u32,
    /// Number of lists; number of experts.
    pub panels: u32,
    /// Words of a list, a multiple of [`DETECT_PAD`].
    pub stride: u32,
    /// Regions per panel.
    pub parts: u32,
    /// Added to a magnitude: sets the top bit of the element if the magnitude is above the threshold.
    pub above: u32,
    /// `DETECT_*`.
    pub flags: u32,
    /// Number of rows that the next kernel reads. They are prefetched into L2 while thread blocks wait for list
    /// positions ([`STEP_PACK`]). Zero disables the prefetch.
    pub ahead_rows: u32,
    /// Address of the first of these rows, aligned to 16 bytes.
    pub ahead: u64,
    /// Bytes from one of these rows to the next.
    pub ahead_row_bytes: u64,
    /// Bytes of each of these rows, a multiple of 16.
    pub ahead_bytes: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<DetectParams>() == 112);

#[cfg(test)]
mod tests {
    use super::*;

    /// All shapes of a region have the same size, and its bits fit.
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
