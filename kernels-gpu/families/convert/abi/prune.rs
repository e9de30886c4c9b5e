//! The kernels `prune`: prunes a dense matrix to 2:4 by magnitude.

use crate::abi::Tile;

/// One thread per 32 columns of a row: one word of positions.
#[derive(Clone, Copy, Debug)]
pub struct Word32;

impl Tile for Word32 {
    const THREADS: u32 = 128;
    const MIN_BLOCKS: u32 = 8;
    const COLUMNS: u32 = 32;
    const ITEMS: u32 = 128;
    const BLOCK: (u32, u32) = (1, 4);
    const ACCESS: u32 = 16;
}

/// Parameters of the `prune` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PruneParams {
    /// The dense matrix, row-major.
    pub dense: u64,
    /// Kept values, `[rows, words, 16]`.
    pub values: u64,
    /// Words of positions, `[rows, words]`.
    pub meta: u64,
    /// Number of rows times `words`.
    pub total: u32,
    /// Words per row.
    pub words: u32,
    /// Columns of the dense matrix.
    pub columns: u32,
    /// Bytes from one row of the dense matrix to the next.
    pub leading_bytes: u32,
    /// 1 if columns, rows and address allow accesses of 16 bytes.
    pub vectors: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<PruneParams>() == 48);
