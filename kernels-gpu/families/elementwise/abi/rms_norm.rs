//! The module `rms_norm`: `x * factor / sqrt(mean(x^2) + epsilon)` of each token, behind a residual sum.

use super::{ELEMENTWISE_THREADS, tiles};

/// Vectors of a token, or of as many tokens as a vector has elements, that a thread keeps.
pub const RMS_KEPT: u32 = 16;
/// Tokens in rows of up to so many vectors are the work of a warp each.
pub const RMS_SHORT: u32 = 4 * 32;

tiles! {
    /// A warp or a thread block for each row, a thread block for as many columns as a vector has elements.
    RmsNormTile = 1, ELEMENTWISE_THREADS / 32 * 8 * 4;
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
    /// `ELEMENTWISE_*`.
    pub flags: u32,
    /// Nothing.
    pub pad: u32,
}

const _: () = assert!(size_of::<RmsNormParams>() == 64);
