//! Rows whose number is known on the device only: those of the sequences of a batch, packed one behind the other (PIT,
//! arXiv 2301.10936: tokens are micro-tiles along m), and what a layer does with them beside attention. Module
//! `live_rows` packs and normalises, module `dense_live` multiplies: tiles behind the last row are not computed.

use crate::abi::{Dtype, Tile};
use crate::families::discover::abi::DETECT_THREADS;

/// Step that packs the rows of sequences.
pub const STEP_PACK_ROWS: u32 = 1;
/// Step that adds and normalises rows.
pub const STEP_NORM_ROWS: u32 = 2;

/// Thread blocks that share a sequence.
pub const PACK_PARTS: u32 = 16;
/// Packed rows are filled up with zeros to a multiple of this.
pub const PACK_PAD: u32 = 128;
/// Elements of a row that is normalised, at the most: four vectors of 8 a lane.
pub const NORM_COLUMNS: u32 = 1024;
/// Offset of the factors in shared memory, then of the summands: behind the sums of warps.
pub const NORM_AFFINE: u32 = 64;
/// Matrices that packing fetches into L2 for the launches behind it.
pub const PACK_AHEAD: usize = 4;
/// Results go to the rows that the packed ones came from.
pub const LIVE_ROWS_SCATTER: u32 = 1;
/// All but `y` was written by launches that had ended when the launch ahead started.
pub const LIVE_ROWS_EARLY: u32 = 2;
/// The rows to pack lie one behind the other already: they are copied, and zeros follow them.
pub const LIVE_ROWS_PACKED: u32 = 4;

// With so many elements in shared memory behind the sums of warps.
macro_rules! live_rows {
    ($($(#[$doc:meta])* $name:ident = $step:ident, $elements:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Tile for $name {
            const THREADS: u32 = DETECT_THREADS;
            // Small: thread blocks go to multiprocessors whose product has left while it ends on others. Beside one
            // with the ring of 229,728 bytes none fits.
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
    /// The rows of the sequences: a warp for each row.
    PackRows = STEP_PACK_ROWS, 0;
    /// `out = (x + y - mean) / sqrt(variance + epsilon) * scale + shift`: a warp for each row.
    NormRows = STEP_NORM_ROWS, 2 * NORM_COLUMNS;
}

/// Parameters of the `live_rows` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LiveRowsParams {
    /// Rows of 16-bit elements: to pack, sequence behind sequence; to normalise.
    pub x: u64,
    /// What is added to them, or 0.
    pub y: u64,
    /// Out.
    pub out: u64,
    /// Factor and summand of each column.
    pub scale: u64,
    /// See `scale`.
    pub shift: u64,
    /// Rows of each sequence, i32: below 0 is 0, above the distance is the distance.
    pub lengths: u64,
    /// Out of packing: the first packed row of the sequence of each packed row, and the one behind its last; pairs of
    /// u32.
    pub ranges: u64,
    /// Out of packing: where each packed row comes from.
    pub sources: u64,
    /// Out of packing: how many packed rows there are, u32.
    pub live: u64,
    /// Matrices that packing fetches into L2: the first before the rows, which the next launch wants at once, the
    /// others behind.
    pub ahead: [u64; PACK_AHEAD],
    /// Their bytes, multiples of 16.
    pub ahead_bytes: [u32; PACK_AHEAD],
    /// Bytes of them that a thread block fetches, multiples of 16.
    pub ahead_part: [u32; PACK_AHEAD],
    /// Bytes from one row to the next: of x, y and the output.
    pub x_row: u32,
    /// See `x_row`.
    pub y_row: u32,
    /// See `x_row`.
    pub out_row: u32,
    /// Elements of a row, a multiple of 8.
    pub columns: u32,
    /// Sequences.
    pub items: u32,
    /// Rows from one sequence to the next.
    pub distance: u32,
    /// `LIVE_ROWS_*`.
    pub flags: u32,
    /// Added to the variance.
    pub epsilon: f32,
    /// Packed rows at the most: what lies behind them is left out.
    pub most: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<LiveRowsParams>() == 176);
