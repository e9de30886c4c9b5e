//! The module `quantize`: rows as e4m3, with a power of two for each [`QUANTIZED_BLOCK`](crate::abi::QUANTIZED_BLOCK)
//! neighbours.

use super::ELEMENTWISE_THREADS;
use crate::abi::{Divisor, tiles};

/// Lanes that share a block.
pub const QUANTIZE_LANES: u32 = 8;

tiles! {
    { THREADS: ELEMENTWISE_THREADS, COLUMNS: 1, ACCESS: 16 }
    /// Eight neighbours a thread.
    QuantizeTile, STEP: 1;
}

/// Parameters of the `quantize` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QuantizeParams {
    /// Rows.
    pub x: u64,
    /// Their codes, without gaps.
    pub codes: u64,
    /// An f32 of each block, by rows.
    pub scales: u64,
    /// Blocks of a row that have scales: as many as stages of products have, those behind its end included.
    pub across: Divisor,
    /// Bytes from one row to the next.
    pub x_row: u32,
    /// Rows.
    pub rows: u32,
    /// Elements of a row, a multiple of 8.
    pub columns: u32,
    /// Nothing.
    pub pad: u32,
}
