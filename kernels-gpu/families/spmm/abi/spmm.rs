//! The module `spmm`: products with unstructured A, row by row.

use core::marker::PhantomData;

use crate::abi::{Dtype, Tile};

/// Threads of the thread blocks that process bundles of rows. Larger thread blocks are for long rows.
pub const BUNDLED_THREADS: u32 = 128;

/// Constants of a [`SubWarp`].
pub trait SubWarpForm {
    /// Lanes of a segment: 4, 8, 16 or 32.
    const LANES: u32;
    /// Rows of B in flight: 4 or 8.
    const UNROLL: usize;
    /// Segments that share a work item.
    const SPLIT: u32;
    /// Threads of a thread block. Large thread blocks keep neighbouring rows and their columns of B on one
    /// multiprocessor.
    const THREADS: u32;
}

/// [`SubWarpForm`] as a type.
#[derive(Clone, Copy, Debug)]
pub struct SubWarpOf<
    const LANES: u32,
    const UNROLL: usize,
    const SPLIT: u32,
    const THREADS: u32 = 128,
>;

impl<const LANES: u32, const UNROLL: usize, const SPLIT: u32, const THREADS: u32> SubWarpForm
    for SubWarpOf<LANES, UNROLL, SPLIT, THREADS>
{
    const LANES: u32 = LANES;
    const UNROLL: usize = UNROLL;
    const SPLIT: u32 = SPLIT;
    const THREADS: u32 = THREADS;
}

/// Sub-warp tile of the module `spmm`. A lane owns `REP` vectors of `VEC` columns, as many vectors apart as a segment
/// has lanes.
#[derive(Clone, Copy, Debug)]
pub struct SubWarp<const VEC: usize, const REP: usize, F>(PhantomData<F>);

impl<const VEC: usize, const REP: usize, F: SubWarpForm> Tile for SubWarp<VEC, REP, F> {
    const THREADS: u32 = F::THREADS;
    // Limits registers to 128 or 102 a thread, so that 16 or 20 warps of a multiprocessor hide each other's loads.
    const MIN_BLOCKS: u32 = if F::UNROLL * REP > 8 { 512 } else { 640 } / F::THREADS;
    const COLUMNS: u32 = F::LANES * VEC as u32 * REP as u32;
    const ITEMS: u32 = F::THREADS / (F::LANES * F::SPLIT);
    const PARTS: u32 = F::SPLIT;
    const BURST: u32 = F::UNROLL as u32;
    const ACCESS: u32 = 1;
    fn shared_bytes(dtype: Dtype) -> u32 {
        if F::SPLIT == 1 { 0 } else { F::THREADS * (VEC * REP * dtype.acc_bytes()) as u32 }
    }
    fn vector(_: Dtype) -> u32 {
        VEC as u32
    }
}
