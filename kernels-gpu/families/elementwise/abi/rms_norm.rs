//! Kernels `rms_norm`: `x * factor / sqrt(mean(x^2) + epsilon)` of each token, after a residual sum. Tokens in rows take
//! one launch. For tokens in columns the features are distributed over thread blocks, and a second launch scales.

use super::ELEMENTWISE_THREADS;
use crate::abi::tiles;

/// Tokens in rows of at most this many vectors are processed by a warp each.
pub const RMS_SHORT: u32 = 4 * 32;
/// Max number of thread blocks that share the features of tokens in columns.
pub const RMS_PARTS: u32 = 64;
/// Min number of features of one of these thread blocks.
pub const RMS_SHARE: u32 = 64;
/// Vectors of a row for each thread block, with tokens in columns: a power of two.
pub const RMS_ACROSS: u32 = 32;

tiles! {
    { THREADS: ELEMENTWISE_THREADS, COLUMNS: 1, ACCESS: 1 }
    /// Tile of tokens in rows: a warp or a thread block for each row.
    RmsRows = STEP_RMS_ROWS 1, SHARED_BYTES: ELEMENTWISE_THREADS / 32 * 4;
    /// Tile of tokens in columns: sums of squares over a share of the features.
    RmsSums = STEP_RMS_SUMS 2, SHARED_BYTES: ELEMENTWISE_THREADS / 32 * RMS_ACROSS * 8 * 4;
    /// Tile of tokens in columns: scales a share of the features.
    RmsScale = STEP_RMS_SCALE 3, SHARED_BYTES: RMS_ACROSS * 8 * 4;
}

/// Parameters of the `rms_norm` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RmsNormParams {
    /// Tokens; with a second summand the sum is stored here.
    pub x: u64,
    /// A second summand, or 0.
    pub y: u64,
    /// A factor for each feature.
    pub factor: u64,
    /// Output.
    pub out: u64,
    /// Sums of squares of tokens in columns: parts x tokens, f32.
    pub partial: u64,
    /// Bytes from one stored row of x to the next.
    pub x_row: u32,
    /// Bytes from one stored row of the second summand to the next.
    pub y_row: u32,
    /// Bytes from one stored row of the output to the next.
    pub out_row: u32,
    /// Tokens.
    pub tokens: u32,
    /// Features.
    pub width: u32,
    /// Added to the mean of the squares.
    pub epsilon: f32,
    /// `ELEMENTWISE_VECTORS`.
    pub flags: u32,
    /// Features of a thread block, with tokens in columns.
    pub share: u32,
    /// Thread blocks that share the features.
    pub parts: u32,
    /// Padding.
    pub pad: u32,
}

const _: () = assert!(size_of::<RmsNormParams>() == 80);
