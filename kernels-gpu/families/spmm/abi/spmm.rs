//! The module `spmm`: products with unstructured A, row by row.

use crate::abi::{Dtype, Tile};

/// Threads of the thread blocks that process bundles of rows. Larger thread blocks are for long rows.
pub const BUNDLED_THREADS: u32 = 128;

/// Sub-warp tile of the module `spmm`. `SPLIT` segments of `LANES` lanes share one work item. A lane owns `REP` vectors
/// of `VEC` columns, `LANES` vectors apart. `UNROLL` (4 or 8) rows of B are in flight. Large thread blocks keep
/// neighbouring rows and their columns of B on one multiprocessor.
#[derive(Clone, Copy, Debug)]
pub struct SubWarp<
    const LANES: u32,
    const VEC: usize,
    const REP: usize,
    const UNROLL: usize,
    const SPLIT: u32,
    const THREADS: u32 = 128,
>;

impl<
    const LANES: u32,
    const VEC: usize,
    const REP: usize,
    const UNROLL: usize,
    const SPLIT: u32,
    const THREADS: u32,
> Tile for SubWarp<LANES, VEC, REP, UNROLL, SPLIT, THREADS>
{
    const THREADS: u32 = THREADS;
    // Limits registers to 128 or 102 a thread, so that 16 or 20 warps of a multiprocessor hide each other's loads.
    const MIN_BLOCKS: u32 = if UNROLL * REP > 8 { 512 } else { 640 } / THREADS;
    const COLUMNS: u32 = LANES * VEC as u32 * REP as u32;
    const ITEMS: u32 = THREADS / (LANES * SPLIT);
    const PARTS: u32 = SPLIT;
    const BURST: u32 = UNROLL as u32;
    const ACCESS: u32 = 1;
    fn shared_bytes(dtype: Dtype) -> u32 {
        if SPLIT == 1 { 0 } else { THREADS * (VEC * REP * dtype.acc_bytes()) as u32 }
    }
    fn vector(_: Dtype) -> u32 {
        VEC as u32
    }
}
