//! The module `marked`: the `wgmma` product of dense matrices, which also marks the nonempty micro-tiles of its result.
//! Each panel (a number of rows of C) has a bit for each column, set as the rows are stored.

use core::marker::PhantomData;

use crate::abi::{AtomInfo, LoaderInfo, Tile, Tma, Wgmma};
use crate::families::gemm::abi::{Panel, WgmmaParams};

/// Tile of the module `marked`: that of `Panel<64, 64, CHUNKS, PLAIN>`.
#[derive(Clone, Copy, Debug)]
pub struct MarkedPanel<const CHUNKS: usize, A = Wgmma, L = Tma>(PhantomData<(A, L)>);

/// The tile of `wgmma`.
type Plain<const CHUNKS: usize, A, L> = Panel<64, 64, CHUNKS, { crate::abi::PLAIN }, 2, A, L>;

impl<const CHUNKS: usize, A: AtomInfo, L: LoaderInfo> Tile for MarkedPanel<CHUNKS, A, L> {
    const NEEDS: u32 = Plain::<CHUNKS, A, L>::NEEDS;
    const STANDS_IN: bool = Plain::<CHUNKS, A, L>::STANDS_IN;
    const THREADS: u32 = Plain::<CHUNKS, A, L>::THREADS;
    const MIN_BLOCKS: u32 = Plain::<CHUNKS, A, L>::MIN_BLOCKS;
    const COLUMNS: u32 = Plain::<CHUNKS, A, L>::COLUMNS;
    const ITEMS: u32 = Plain::<CHUNKS, A, L>::ITEMS;
    const PARTS: u32 = Plain::<CHUNKS, A, L>::PARTS;
    const BURST: u32 = Plain::<CHUNKS, A, L>::BURST;
    const BLOCK: (u32, u32) = Plain::<CHUNKS, A, L>::BLOCK;
    const ORDER: u32 = Plain::<CHUNKS, A, L>::ORDER;
    const SHARED_BYTES: u32 = Plain::<CHUNKS, A, L>::SHARED_BYTES;
    const ACCESS: u32 = Plain::<CHUNKS, A, L>::ACCESS;
}

/// Words of bits of a panel with `columns` columns: whole tiles of 64.
pub const fn mark_words(columns: usize) -> usize {
    columns.div_ceil(64) * 2
}

/// Parameters of the `marked` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MarkedParams {
    /// The product. C allows 16-byte accesses.
    pub product: WgmmaParams,
    /// Bits, [`mark_words`] for each panel. Bits of nonempty columns are set, and no bit is cleared.
    pub marks: u64,
    /// Words of a panel.
    pub words: u32,
    /// Binary logarithm of the rows of a panel, at least 4.
    pub height: u32,
}

const _: () = assert!(size_of::<MarkedParams>() == 408);
