//! Kernels `gated`: `gate(x) * y` of features that are stored one after the other in one matrix.

use super::ELEMENTWISE_THREADS;
use crate::abi::tiles;

tiles! {
    { THREADS: ELEMENTWISE_THREADS, COLUMNS: 1, ACCESS: 1 }
    /// Tile of `gated`: a vector for each thread.
    GatedTile, STEP: 1;
}

/// Parameters of the `gated` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GatedParams {
    /// Gates, followed by their factors.
    pub x: u64,
    /// Output.
    pub out: u64,
    /// Bytes from a gate to its factor.
    pub apart: u64,
    /// Bytes from one stored row of x to the next.
    pub x_row: u32,
    /// Bytes from one stored row of the output to the next.
    pub out_row: u32,
    /// Stored rows of the output.
    pub rows: u32,
    /// Columns of the output.
    pub columns: u32,
    /// `ELEMENTWISE_VECTORS`, and the function of the gates.
    pub flags: u32,
    /// Padding.
    pub pad: u32,
}

const _: () = assert!(size_of::<GatedParams>() == 48);
