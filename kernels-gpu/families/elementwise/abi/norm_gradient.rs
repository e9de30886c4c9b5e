//! Kernels `norm_gradient`: gradients of a layer normalisation of a residual sum. Means and deviations are recomputed.

use super::ELEMENTWISE_THREADS;
use crate::abi::tiles;

/// Adjacent threads along a row, in the sums over rows.
pub const NORM_ACROSS: u32 = 16;

tiles! {
    { THREADS: ELEMENTWISE_THREADS, COLUMNS: 1, ACCESS: 1 }
    /// Tile of the gradient of the summands: a warp for each row.
    NormInput = STEP_NORM_INPUT 1;
    /// Tile of sums over a part of the rows, for some columns.
    NormParts = STEP_NORM_PARTS 2, SHARED_BYTES: ELEMENTWISE_THREADS * 2 * 8 * 4;
    /// Tile of sums over the parts: a sum for each thread.
    NormSum = STEP_NORM_SUM 3;
}

/// Parameters of the `norm_gradient` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NormGradientParams {
    /// Both summands of the residual sum.
    pub x: [u64; 2],
    /// A factor for each column.
    pub factor: u64,
    /// Gradient of the results.
    pub dy: u64,
    /// Output: gradient of the summands of the residual sum.
    pub dx: u64,
    /// Mean and inverse deviation of each row, f32.
    pub stats: u64,
    /// For each part a row of sums for the factors of the norm and one for its biases, f32.
    pub partial: u64,
    /// Output: these two rows of sums over all parts, f32.
    pub affine: u64,
    /// Bytes from one row to the next of both summands, of dy and of dx.
    pub row_bytes: [u32; 4],
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub width: u32,
    /// Added to the variance.
    pub epsilon: f32,
    /// Rows of a part.
    pub of_part: u32,
    /// Parts.
    pub parts: u32,
    /// `ELEMENTWISE_VECTORS`.
    pub flags: u32,
}

const _: () = assert!(size_of::<NormGradientParams>() == 104);
