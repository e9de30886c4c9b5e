//! The module `rms_norm`: `x * factor / sqrt(mean(x^2) + epsilon)` of each token, behind a residual sum. Tokens in rows are
//! one launch; of tokens in columns the features are dealt to thread blocks, and a second launch scales.

use super::ELEMENTWISE_THREADS;
use crate::abi::tiles;

/// Tokens in rows of up to so many vectors are the work of a warp each.
pub const RMS_SHORT: u32 = 4 * 32;
/// Thread blocks that share the features of tokens in columns, at the most.
pub const RMS_PARTS: u32 = 64;
/// Features of one of them at the least.
pub const RMS_SHARE: u32 = 64;
/// Vectors of a row that a thread block takes, of tokens in columns: a power of two.
pub const RMS_ACROSS: u32 = 32;

tiles! {
    { THREADS: ELEMENTWISE_THREADS, COLUMNS: 1, ACCESS: 1 }
    /// A warp or a thread block for each row.
    RmsRows = STEP_RMS_ROWS 1, SHARED_BYTES: ELEMENTWISE_THREADS / 32 * 4;
    /// A share of the features: sums of squares.
    RmsSums = STEP_RMS_SUMS 2, SHARED_BYTES: ELEMENTWISE_THREADS / 32 * RMS_ACROSS * 8 * 4;
    /// The same share scaled.
    RmsScale = STEP_RMS_SCALE 3, SHARED_BYTES: RMS_ACROSS * 8 * 4;
}

/// Parameters of the `rms_norm` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RmsNormParams {
    /// Tokens; with a second summand they take the sum.
    pub x: u64,
    /// A second summand, or 0.
    pub y: u64,
    /// A factor for each feature.
    pub factor: u64,
    /// Out.
    pub out: u64,
    /// Sums of squares of tokens in columns: parts x tokens, f32.
    pub partial: u64,
    /// Bytes from one stored row of x to the next.
    pub x_row: u32,
    /// The same of the second summand.
    pub y_row: u32,
    /// The same of the output.
    pub out_row: u32,
    /// Tokens.
    pub tokens: u32,
    /// Features.
    pub width: u32,
    /// Added to the mean of the squares.
    pub epsilon: f32,
    /// `ELEMENTWISE_VECTORS`.
    pub flags: u32,
    /// Features of a thread block, of tokens in columns.
    pub share: u32,
    /// Thread blocks that share them.
    pub parts: u32,
    /// Nothing.
    pub pad: u32,
}

const _: () = assert!(size_of::<RmsNormParams>() == 80);
