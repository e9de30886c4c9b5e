//! Kernels `activation`: a function of every element, and its gradient.

use super::ELEMENTWISE_THREADS;
use crate::abi::tiles;

tiles! {
    { THREADS: ELEMENTWISE_THREADS, COLUMNS: 1, ACCESS: 1 }
    /// Tile of the function: a vector for each thread.
    ActivationTile = STEP_ACTIVATION 1;
    /// Tile of the gradient: a vector for each thread.
    ActivationGradientTile = STEP_ACTIVATION_GRADIENT 2;
}

/// Parameters of the `activation` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ActivationParams {
    /// Argument of the function.
    pub x: u64,
    /// Gradient of the results; 0 in the forward pass.
    pub dy: u64,
    /// Output: results, or the gradient of x.
    pub out: u64,
    /// Bytes from one row to the next of x, dy and out.
    pub row_bytes: [u32; 3],
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// `ELEMENTWISE_VECTORS`, and the function.
    pub flags: u32,
}

const _: () = assert!(size_of::<ActivationParams>() == 48);
