//! Work items of `pit` and `pit_tf32`.

use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

buffers! {
    // `PitLaunch::params` checks the alignment of the operands, its callers their shapes
    // (`host/dynamic/matmul`, `host/offer/run.rs`). The detection of A on the same stream writes
    // lists of at most `stride` rows of B.
    unsafe PitParams {
        lists: u32, Fresh;
        counts: u32, Fresh;
        b: u8, ReadWrite;
        c: u8, ReadWrite;
        a: u16, ReadWrite;
    }
}

/// Row block by a tile of columns, and its number of micro-tiles.
#[derive(Clone, Copy)]
pub struct Work {
    pub row_block: u32,
    pub column: u32,
    pub count: u32,
}

impl Work {
    /// Returns work item `index` for tiles of `columns` columns. Neighbouring items share columns of B.
    #[inline(always)]
    pub fn new(p: &PitParams, index: u32, columns: u32) -> Work {
        let across = index.checked_div(p.panels).unwrap_or(0);
        let row_block = index - across * p.panels;
        Work { row_block, column: across * columns, count: p.counts().at(row_block).ld() }
    }
}
