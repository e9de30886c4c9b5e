//! The kernels `sample`: estimates the share of nonempty micro-tiles of 32, 64 and 128 rows by one column, from a sample
//! of boxes of a matrix. The host reads the result without waiting, and selects the kernel of the next step by it (PIT,
//! arXiv 2301.10936, section 3.4: the cover of each micro-tile, counted on a sample).

use crate::abi::{Divisor, Tile};

/// Rows per box: the tallest micro-tile.
pub const SAMPLE_ROWS: u32 = 128;
/// Columns per box of 2-byte elements: 128 bytes.
pub const SAMPLE_COLUMNS: u32 = 64;
/// Max boxes: two per SM of an H100.
pub const SAMPLE_BOXES: u32 = 264;
/// Threads: one warp per 32 rows.
const THREADS: u32 = 128;
/// Bits of each of three counts in a word: enough for the micro-tiles of [`SAMPLE_BOXES`] boxes.
pub const SAMPLE_BITS: u32 = 21;

const _: () = assert!(SAMPLE_BOXES * SAMPLE_COLUMNS * SAMPLE_ROWS / 32 < 1 << SAMPLE_BITS);

/// Step of the module.
pub const STEP_SAMPLE: u32 = 7;

/// One thread block per box.
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
    /// Words of 8 bytes: nonempty micro-tiles (three counts), examined micro-tiles (three counts), and arrivals, all
    /// zero between launches; then the number of launches.
    pub state: u64,
    /// Out, 8 bytes of host memory: shares in 65,535ths for micro-tiles of 32, 64 and 128 rows, then the launch number,
    /// from 1 to 65,535.
    pub report: u64,
    /// Boxes across the matrix.
    pub across: Divisor,
    /// Rows of the matrix.
    pub rows: u32,
    /// Columns of the matrix.
    pub columns: u32,
    /// One of `stride` consecutive boxes is examined.
    pub stride: u32,
    /// Added to a magnitude: sets the top bit of the element if the magnitude is above the threshold.
    pub above: u32,
    /// [`DETECT_VECTORS`](super::DETECT_VECTORS).
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<SampleParams>() == 64);
