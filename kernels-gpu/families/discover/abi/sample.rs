//! The module `sample`: which share of the micro-tiles of 32, 64 and 128 rows by one column holds something, counted in
//! some boxes of a matrix and left where the host reads it without waiting. What the next step's kernel is chosen by
//! (PIT, arXiv 2301.10936, section 3.4: the cover of each micro-tile, counted on a sample).

use crate::abi::{Divisor, Tile};

/// Rows of a box: the tallest micro-tile.
pub const SAMPLE_ROWS: u32 = 128;
/// Columns of a box of 2-byte elements: 128 bytes.
pub const SAMPLE_COLUMNS: u32 = 64;
/// Boxes at the most: two for every multiprocessor of an H100.
pub const SAMPLE_BOXES: u32 = 264;
/// Threads: a warp for each 32 rows.
const THREADS: u32 = 128;
/// Bits of a count in a word of three: more than [`SAMPLE_BOXES`] boxes have micro-tiles.
pub const SAMPLE_BITS: u32 = 21;

const _: () = assert!(SAMPLE_BOXES * SAMPLE_COLUMNS * SAMPLE_ROWS / 32 < 1 << SAMPLE_BITS);

/// Step of the module.
pub const STEP_SAMPLE: u32 = 7;

/// A thread block for each box.
#[derive(Clone, Copy, Debug)]
pub struct SampleBox;

impl Tile for SampleBox {
    const THREADS: u32 = THREADS;
    const MIN_BLOCKS: u32 = 8;
    const COLUMNS: u32 = SAMPLE_COLUMNS;
    const BURST: u32 = 8;
    const BLOCK: (u32, u32) = (SAMPLE_ROWS, 1);
    const STEP: u32 = STEP_SAMPLE;
    const SHARED_BYTES: u32 = 32;
    const ACCESS: u32 = 1;
}

/// Parameters of the `sample` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SampleParams {
    /// The matrix, row-major.
    pub source: u64,
    /// Bytes from one row to the next.
    pub row_bytes: u64,
    /// Words of 8 bytes: micro-tiles found and looked at, three counts each, and arrivals, all zero between launches;
    /// then how many launches there were.
    pub state: u64,
    /// Out, 8 bytes of the host's memory: shares in 65,535ths of the micro-tiles of 32, 64 and 128 rows, then the
    /// launch, from 1 to 65,535.
    pub report: u64,
    /// Boxes of a row of boxes.
    pub across: Divisor,
    /// Rows of the matrix.
    pub rows: u32,
    /// Columns of the matrix.
    pub columns: u32,
    /// Of so many boxes that follow each other one is looked at.
    pub stride: u32,
    /// What makes the top bit of an element whose magnitude is above the threshold.
    pub above: u32,
    /// [`DETECT_VECTORS`](super::DETECT_VECTORS).
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<SampleParams>() == 64);
