//! The module `sddmm_staged`: products of dense matrices at many unstructured nonzeros, on CUDA cores. A thread block
//! keeps rows of Y in shared memory, and computes the entries that rows of S have in these columns.

use crate::abi::{BOTH_ROWS, Dtype, Tile};

/// Tile of the module `sddmm_staged`: a segment of `LANES` (8, 16 or 32) lanes computes a run of entries. `REP` vectors
/// of four elements a lane hold all of k. `FLIGHT` rows of Y are read at once, from `KIB` KiB of shared memory.
#[derive(Clone, Copy, Debug)]
pub struct StagedDots<
    const LANES: u32,
    const REP: usize,
    const FLIGHT: usize,
    const KIB: usize = STAGED_KIB,
>;

/// KiB of shared memory of the kernels for GPUs that have as much.
const STAGED_KIB: usize = 200;

impl<const LANES: u32, const REP: usize, const FLIGHT: usize, const KIB: usize> Tile
    for StagedDots<LANES, REP, FLIGHT, KIB>
{
    const THREADS: u32 = 512;
    const STANDS_IN: bool = KIB < STAGED_KIB;
    /// Max terms of a product.
    const COLUMNS: u32 = LANES * 4 * REP as u32;
    const ITEMS: u32 = Self::THREADS / LANES;
    const BURST: u32 = FLIGHT as u32;
    const ORDER: u32 = BOTH_ROWS;
    const SHARED_BYTES: u32 = (KIB << 10) as u32;
    const ACCESS: u32 = 1;
    fn vector(_: Dtype) -> u32 {
        4
    }
}

/// Work of a thread block: the items `first..first + items`, whose columns are `column..column + columns`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shelf {
    /// First column.
    pub column: u32,
    /// Number of columns.
    pub columns: u32,
    /// First item.
    pub first: u32,
    /// Number of items.
    pub items: u32,
}

/// Parameters of the `sddmm_staged` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SddmmStagedParams {
    /// Parameters of the `sddmm` kernels.
    pub sddmm: super::SddmmParams,
    /// A [`Shelf`] for each thread block.
    pub shelves: u64,
}

const _: () = assert!(size_of::<Shelf>() == 16);
const _: () = assert!(size_of::<SddmmStagedParams>() == 88);
