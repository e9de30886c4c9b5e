//! The module `sddmm_staged`: products of dense matrices at many unstructured nonzeros, on CUDA cores. A thread block
//! keeps rows of Y in shared memory, and computes the entries that rows of S have in these columns.

use core::marker::PhantomData;

use crate::abi::{BOTH_ROWS, Dtype, Tile};

/// KiB of shared memory of the kernels for GPUs that have as much.
const STAGED_KIB: usize = 200;

/// Parameters of a [`StagedDots`].
pub trait ShelfForm {
    /// Lanes of a segment: 8, 16 or 32.
    const LANES: u32;
    /// KiB of shared memory for rows of Y.
    const KIB: usize;
}

/// [`ShelfForm`] as a type.
#[derive(Clone, Copy, Debug)]
pub struct ShelfOf<const LANES: u32, const KIB: usize = STAGED_KIB>;

impl<const LANES: u32, const KIB: usize> ShelfForm for ShelfOf<LANES, KIB> {
    const LANES: u32 = LANES;
    const KIB: usize = KIB;
}

/// Tile of the module `sddmm_staged`: a segment of lanes computes a run of entries. `REP` vectors of four elements a
/// lane hold all of k. `FLIGHT` rows of Y are read at once.
#[derive(Clone, Copy, Debug)]
pub struct StagedDots<const REP: usize, const FLIGHT: usize, F>(PhantomData<F>);

impl<const REP: usize, const FLIGHT: usize, F: ShelfForm> Tile for StagedDots<REP, FLIGHT, F> {
    const THREADS: u32 = 512;
    const STANDS_IN: bool = F::KIB < STAGED_KIB;
    /// Max terms of a product.
    const COLUMNS: u32 = F::LANES * 4 * REP as u32;
    const ITEMS: u32 = Self::THREADS / F::LANES;
    const BURST: u32 = FLIGHT as u32;
    const ORDER: u32 = BOTH_ROWS;
    const SHARED_BYTES: u32 = (F::KIB << 10) as u32;
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
