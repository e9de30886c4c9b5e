//! What a thread block of `pit` and `pit_tf32` computes next.

use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

/// A row block against a tile of columns, and how many micro-tiles it has.
#[derive(Clone, Copy)]
pub struct Work {
    pub row_block: u32,
    pub column: u32,
    pub count: u32,
}

impl Work {
    /// Work number `index`, of so many columns: neighbours share columns of B.
    #[inline(always)]
    pub fn new(p: &PitParams, index: u32, columns: u32) -> Work {
        let across = index.checked_div(p.panels).unwrap_or(0);
        let row_block = index - across * p.panels;
        Work {
            row_block,
            column: across * columns,
            count: global::ld_cg_b32(p.counts + row_block as u64 * 4, true),
        }
    }
}
