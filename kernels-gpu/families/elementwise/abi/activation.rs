//! The module `activation`: a function of every element, and its gradient.

use super::ELEMENTWISE_THREADS;
use crate::abi::tiles;

tiles! {
    { THREADS: ELEMENTWISE_THREADS, COLUMNS: 1, ACCESS: 1 }
    /// A vector a thread.
    ActivationTile = STEP_ACTIVATION 1;
    /// Its gradient, a vector a thread.
    ActivationGradientTile = STEP_ACTIVATION_GRADIENT 2;
}

/// Parameters of the `activation` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ActivationParams {
    /// What the function is taken of.
    pub x: u64,
    /// The gradient of the results; 0 forward.
    pub dy: u64,
    /// Out: results, or the gradient of x.
    pub out: u64,
    /// Bytes from one row to the next of x, dy and out.
    pub row_bytes: [u32; 3],
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// `ELEMENTWISE_VECTORS`, and which function.
    pub flags: u32,
}

const _: () = assert!(size_of::<ActivationParams>() == 48);
