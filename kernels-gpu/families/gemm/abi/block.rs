//! The module `block`: products of block-sparse A on Ampere's Tensor Cores. Its parameters are
//! [`crate::abi::SpmmParams`].

use crate::abi::PANEL_BYTES;
use crate::abi::{Dtype, Tile};

/// Tensor Core tile of the module `block`: `B` x `B` blocks of A against 128 columns, four warps. A warp holds `MA` x
/// `NA` m16n8 atoms. `ALIGNED`: 16-byte copies of B, otherwise element by element.
#[derive(Clone, Copy, Debug)]
pub struct MmaTile<const B: usize, const MA: usize, const NA: usize, const ALIGNED: bool>;

/// Stages of the copy pipeline of the module `block`.
pub const STAGES: usize = 3;
/// Columns of a tile of the module `block`.
pub const BLOCK_COLUMNS: usize = 128;

impl<const B: usize, const MA: usize, const NA: usize, const ALIGNED: bool>
    MmaTile<B, MA, NA, ALIGNED>
{
    /// Bytes of A's tile in one stage.
    pub const A_BYTES: usize = B * PANEL_BYTES;

    /// Bytes of one row of B's tile. TF32 rows have padding instead of a swizzle.
    pub const fn b_row_bytes(dtype: Dtype) -> usize {
        BLOCK_COLUMNS * dtype.bytes() + if dtype.bytes() == 4 { 32 } else { 0 }
    }

    /// Rows of B (k) in one stage.
    pub const fn stage_k(dtype: Dtype) -> usize {
        PANEL_BYTES / dtype.bytes()
    }

    /// Bytes of one stage.
    pub const fn stage_bytes(dtype: Dtype) -> usize {
        Self::A_BYTES + Self::stage_k(dtype) * Self::b_row_bytes(dtype)
    }
}

impl<const B: usize, const MA: usize, const NA: usize, const ALIGNED: bool> Tile
    for MmaTile<B, MA, NA, ALIGNED>
{
    const THREADS: u32 = 128;
    const MIN_BLOCKS: u32 = 3;
    const COLUMNS: u32 = BLOCK_COLUMNS as u32;
    const BLOCK: (u32, u32) = (B as u32, B as u32);
    const ACCESS: u32 = if ALIGNED { 16 } else { 1 };
    fn shared_bytes(dtype: Dtype) -> u32 {
        (STAGES * Self::stage_bytes(dtype)) as u32
    }
}
