//! The module `marked`: the `wgmma` product of dense matrices that also says which micro-tiles of its result are not
//! empty: a bit for each column of every so many rows of C, set as the rows are stored.

use core::marker::PhantomData;

use crate::abi::{AtomInfo, LoaderInfo, Tile, Tma, Wgmma};
use crate::families::gemm::abi::{Panel, WgmmaParams};

/// The tile of `wgmma`'s `Panel<64, 64, CHUNKS, PLAIN>`.
#[derive(Clone, Copy, Debug)]
pub struct MarkedPanel<const CHUNKS: usize, A = Wgmma, L = Tma>(PhantomData<(A, L)>);

/// The tile that it is.
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

/// Words of bits of a panel of `columns` columns: whole tiles of 64.
pub const fn mark_words(columns: usize) -> usize {
    columns.div_ceil(64) * 2
}

/// Parameters of the `marked` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MarkedParams {
    /// The product. C allows accesses of 16 bytes.
    pub product: WgmmaParams,
    /// Bits, [`mark_words`] for each panel: those of columns that hold something are set, none is cleared.
    pub marks: u64,
    /// Words of a panel.
    pub words: u32,
    /// Binary logarithm of the rows of a panel: 4 or more.
    pub height: u32,
}

const _: () = assert!(size_of::<MarkedParams>() == 408);
