//! The module `dense_csr`: a [`DenseTile`] of a product with unstructured sparse A, whose entries warps store among
//! zeros into the stages ("load as sparse, compute as dense", Flash-LLM, arXiv 2309.10285).

use core::marker::PhantomData;

use super::{DenseForm, DenseParams, DenseTile};
use crate::abi::{LoaderInfo, STRIP_ROWS, Tile};

/// Tile of the module `dense_csr`.
#[derive(Clone, Copy, Debug)]
pub struct FilledTile<const CHUNKS: usize, F>(PhantomData<F>);

impl<const CHUNKS: usize, F: DenseForm> FilledTile<CHUNKS, F> {
    /// Groups of rows (strips) of a tile.
    pub const STRIPS: u32 = 4;
    /// Rows of a group.
    pub const STRIP: usize = DenseTile::<CHUNKS, F>::ROWS / Self::STRIPS as usize;
    /// Warps that take turns at the stages of a row group. A stage takes, apart from its entries, as long as four steps
    /// of them. The accumulators of the largest tile leave registers for one warp, and so do copies by threads.
    pub const TURNS: u32 = if F::GROUPS * CHUNKS == 8 || !F::L::BY_ONE { 1 } else { 2 };
    /// Warps that store entries into the stages. Those of the first row group copy B, except for the first stages,
    /// which a consumer warp copies.
    pub const FILLERS: u32 = Self::STRIPS * Self::TURNS;
}

impl<const CHUNKS: usize, F: DenseForm> Tile for FilledTile<CHUNKS, F> {
    const NEEDS: u32 = DenseTile::<CHUNKS, F>::NEEDS;
    const STANDS_IN: bool = DenseTile::<CHUNKS, F>::STANDS_IN;
    const THREADS: u32 = (DenseTile::<CHUNKS, F>::WARPS + Self::FILLERS) * 32;
    const MIN_BLOCKS: u32 =
        if F::GROUPS * CHUNKS == 1 { DenseTile::<CHUNKS, F>::MIN_BLOCKS } else { 1 };
    const COLUMNS: u32 = DenseTile::<CHUNKS, F>::COLUMNS;
    /// Rows of a group.
    const ITEMS: u32 = {
        assert!(Self::STRIP <= STRIP_ROWS as usize, "a lane for each row");
        Self::STRIP as u32
    };
    const PARTS: u32 = F::CUT as u32;
    const BURST: u32 = DenseTile::<CHUNKS, F>::BURST;
    const BLOCK: (u32, u32) = DenseTile::<CHUNKS, F>::BLOCK;
    const SHARED_BYTES: u32 = DenseTile::<CHUNKS, F>::SHARED_BYTES;
    const ACCESS: u32 = 16;
}

/// Parameters of the `dense_csr` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DenseCsrParams {
    /// The product. `a_map` is the map of B: A is not read by a map.
    pub product: DenseParams,
    /// Heads of A's lists, [`StripDeal::head`](crate::abi::StripDeal::head) words each.
    pub heads: u64,
    /// The lists, made of the words of [`strip_word`](crate::abi::strip_word).
    pub words: u64,
    /// Values of the entries.
    pub values: u64,
    /// Steps from one list to the next.
    pub room: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<DenseCsrParams>() == 344);
