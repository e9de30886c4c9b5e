//! Rows whose number is known only on the device: the packed rows of the sequences of a batch (PIT, arXiv 2301.10936:
//! tokens are micro-tiles along m), and the steps of a layer other than attention. Module `live_rows` packs and
//! normalizes, module `dense_live` multiplies: tiles after the last row are not computed.

use crate::abi::{Dtype, Tile};
use crate::families::discover::abi::DETECT_THREADS;

/// Step that packs the rows of sequences.
pub const STEP_PACK_ROWS: u32 = 1;
/// Step that adds and normalizes rows.
pub const STEP_NORM_ROWS: u32 = 2;

/// Thread blocks that share a sequence.
pub const PACK_PARTS: u32 = 16;
/// Packed rows are padded with zero rows to a multiple of this.
pub const PACK_PAD: u32 = 128;
/// Max elements of a normalized row: four vectors of 8 per lane.
pub const NORM_COLUMNS: u32 = 1024;
/// Offset of the scales in shared memory, after the sums of warps; the shifts follow.
pub const NORM_AFFINE: u32 = 64;
/// Matrices that packing prefetches into L2 for the launches after it.
pub const PACK_AHEAD: usize = 4;
/// Results are stored at the source rows of the packed ones.
pub const LIVE_ROWS_SCATTER: u32 = 1;
/// All inputs except `y` were written by launches that had ended before the preceding launch started.
pub const LIVE_ROWS_EARLY: u32 = 2;
/// The rows to pack are contiguous already: they are copied, followed by zeros.
pub const LIVE_ROWS_PACKED: u32 = 4;

// `$elements`: elements in shared memory after the sums of warps.
macro_rules! live_rows {
    ($($(#[$doc:meta])* $name:ident = $step:ident, $elements:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Tile for $name {
            const THREADS: u32 = DETECT_THREADS;
            // Small thread blocks start on SMs whose product has ended while it still runs on others. None fits next to
            // a product with its ring of 229,728 bytes.
            const MIN_BLOCKS: u32 = 4;
            const COLUMNS: u32 = NORM_COLUMNS;
            const ITEMS: u32 = DETECT_THREADS / 32;
            const PARTS: u32 = PACK_PARTS;
            const BURST: u32 = 4;
            const STEP: u32 = $step;
            const ACCESS: u32 = 16;
            fn shared_bytes(dtype: Dtype) -> u32 {
                let elements: u32 = $elements;
                NORM_AFFINE + elements * dtype.bytes() as u32
            }
        }
    )+};
}

live_rows! {
    /// Packs the rows of the sequences: one warp per row.
    PackRows = STEP_PACK_ROWS, 0;
    /// `out = (x + y - mean) / sqrt(variance + epsilon) * scale + shift`: one warp per row.
    NormRows = STEP_NORM_ROWS, 2 * NORM_COLUMNS;
}

/// Parameters of the `live_rows` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LiveRowsParams {
    /// Rows of 16-bit elements: to pack, all sequences one after the other; or to normalize.
    pub x: u64,
    /// Rows that are added to `x`, or 0.
    pub y: u64,
    /// Out: the packed or normalized rows.
    pub out: u64,
    /// Scale of each column.
    pub scale: u64,
    /// Shift of each column.
    pub shift: u64,
    /// Rows of each sequence, i32, clamped to 0 and `distance`.
    pub lengths: u64,
    /// Out of packing: for each packed row the first packed row and the end of its sequence; pairs of u32.
    pub ranges: u64,
    /// Out of packing: the source row of each packed row.
    pub sources: u64,
    /// Out of packing: number of packed rows, u32.
    pub live: u64,
    /// Matrices that packing prefetches into L2: the first one before the rows, as the next launch reads it at once,
    /// the others after the rows.
    pub ahead: [u64; PACK_AHEAD],
    /// Bytes of these matrices, multiples of 16.
    pub ahead_bytes: [u32; PACK_AHEAD],
    /// Bytes of each matrix that a thread block prefetches, multiples of 16.
    pub ahead_part: [u32; PACK_AHEAD],
    /// Bytes from one row of x to the next.
    pub x_row: u32,
    /// Bytes from one row of y to the next.
    pub y_row: u32,
    /// Bytes from one row of the output to the next.
    pub out_row: u32,
    /// Elements per row, a multiple of 8.
    pub columns: u32,
    /// Number of sequences.
    pub items: u32,
    /// Rows from one sequence to the next.
    pub distance: u32,
    /// `LIVE_ROWS_*`.
    pub flags: u32,
    /// Added to the variance.
    pub epsilon: f32,
    /// Max packed rows; further rows are dropped.
    pub most: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<LiveRowsParams>() == 176);
