//! The module `gated`: `gate(x) * y` of features that lie behind each other in one matrix.

use super::ELEMENTWISE_THREADS;
use crate::abi::tiles;

tiles! {
    { THREADS: ELEMENTWISE_THREADS, COLUMNS: 1, ACCESS: 1 }
    /// A vector a thread.
    GatedTile, STEP: 1;
}

/// Parameters of the `gated` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GatedParams {
    /// Gates, and behind them what they are multiplied by.
    pub x: u64,
    /// Out.
    pub out: u64,
    /// Bytes from a gate to its factor.
    pub apart: u64,
    /// Bytes from one stored row of x to the next.
    pub x_row: u32,
    /// The same of the output.
    pub out_row: u32,
    /// Stored rows of the output.
    pub rows: u32,
    /// Its columns.
    pub columns: u32,
    /// `ELEMENTWISE_VECTORS`, and which gate.
    pub flags: u32,
    /// Nothing.
    pub pad: u32,
}

const _: () = assert!(size_of::<GatedParams>() == 48);
