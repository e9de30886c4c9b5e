//! Module `quantize`: rows as e4m3, with a power of two as the scale of each
//! [`QUANTIZED_BLOCK`](crate::abi::QUANTIZED_BLOCK) neighbours.

use super::ELEMENTWISE_THREADS;
use crate::abi::{Divisor, tiles};

/// Lanes that share a block of neighbours.
pub const QUANTIZE_LANES: u32 = 8;

tiles! {
    { THREADS: ELEMENTWISE_THREADS, COLUMNS: 1, ACCESS: 16 }
    /// Tile of `quantize`: eight neighbours for each thread.
    QuantizeTile, STEP: 1;
}

/// Parameters of the `quantize` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QuantizeParams {
    /// Rows.
    pub x: u64,
    /// e4m3 codes of the rows, without gaps.
    pub codes: u64,
    /// f32 scale of each block, by rows.
    pub scales: u64,
    /// Blocks of a row with scales: those of all stages of a product, including blocks past the end of the row.
    pub across: Divisor,
    /// Bytes from one row to the next.
    pub x_row: u32,
    /// Rows.
    pub rows: u32,
    /// Elements of a row, a multiple of 8.
    pub columns: u32,
    /// Padding.
    pub pad: u32,
}
