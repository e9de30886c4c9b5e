//! The module `attention`: `softmax(scale * Q K^T) V` at the entries of a mask, without scores in
//! memory. A thread block processes 128 queries, two halves of 64, with tiles of 128 gathered keys. It has two consumer
//! warpgroups of one half each, fed by the tensor copy engine; or four warps with 16 queries of each half, which do
//! their own copies.

use core::marker::PhantomData;

use crate::abi::{AtomInfo, HALF, LoaderInfo, MapWords, SMEM_TILE, STRIP, Tile, Tma, Wgmma};

/// Contiguous keys that are copied together.
pub const ATTENTION_PIECE: usize = 64;
/// Keys of a tile: two pieces, at any two positions.
pub const ATTENTION_KEYS: usize = 2 * ATTENTION_PIECE;
/// Bytes of the mask of 64 queries and a tile of keys: for each thread of a warpgroup the bits of its accumulators, two
/// words of 32 (one for each piece).
pub const ATTENTION_MASK: usize = HALF * ATTENTION_KEYS / 8;
/// Mask index of a tile without any of these entries.
pub const MASK_NONE: u32 = u32::MAX;
/// Mask index of a tile with all of these entries.
pub const MASK_ALL: u32 = u32::MAX - 1;
/// Upper bound (exclusive) of the index of a mask.
pub const MASK_LIMIT: u32 = u32::MAX - 2;

/// Tile of the modules, for heads of `CHUNKS` x 64 elements.
#[derive(Clone, Copy, Debug)]
pub struct Attention<const CHUNKS: usize, A = Wgmma, L = Tma>(PhantomData<(A, L)>);

impl<const CHUNKS: usize, A: AtomInfo, L> Attention<CHUNKS, A, L> {
    /// Bytes of 128 queries.
    pub const BYTES: usize = 2 * CHUNKS * SMEM_TILE;
    /// Bytes of a slot of the ring. It holds keys or values: a tile with asynchronous products, otherwise a piece.
    pub const SLOT: usize = if A::ASYNCHRONOUS { Self::BYTES } else { Self::BYTES / 2 };
    /// Slots of the ring. With three pieces two thread blocks fit in 164 KB: one computes exponentials while the other
    /// multiplies.
    pub const SLOTS: usize = if A::ASYNCHRONOUS { 5 } else { 3 };
    /// Offset of the ring; the queries are stored before it.
    pub const RING: usize = Self::BYTES;
    /// Offset of the output buffers, [`SMEM_TILE`] bytes for each 64 queries. Warps that do their own copies store the
    /// output through the buffer of their queries.
    pub const OUT: usize = if A::ASYNCHRONOUS { Self::RING + Self::SLOTS * Self::SLOT } else { 0 };
    /// Bytes after the barriers: two words for the split-K fix-up, and sums of exponentials if registers are scarce.
    pub const SCRATCH: usize = if A::ASYNCHRONOUS { 16 } else { 16 + 4 * STRIP };
    /// Offset of the barriers: full of each slot and of the queries, then empty of each.
    pub const BARRIERS: usize = if A::ASYNCHRONOUS {
        Self::OUT + 2 * SMEM_TILE
    } else {
        Self::RING + Self::SLOTS * Self::SLOT
    };
}

impl<const CHUNKS: usize, A: AtomInfo, L: LoaderInfo> Tile for Attention<CHUNKS, A, L> {
    const THREADS: u32 = if A::ASYNCHRONOUS { 384 } else { 128 };
    const MIN_BLOCKS: u32 = if A::ASYNCHRONOUS { 1 } else { 2 };
    const NEEDS: u32 = A::NEEDS | L::NEEDS;
    const STANDS_IN: bool = !A::ASYNCHRONOUS;
    const COLUMNS: u32 = 64 * CHUNKS as u32;
    const BURST: u32 = Self::SLOTS as u32;
    const BLOCK: (u32, u32) = (STRIP as u32, ATTENTION_PIECE as u32);
    const SHARED_BYTES: u32 = (Self::BARRIERS + (Self::SLOTS + 1) * 16 + Self::SCRATCH) as u32;
    const ACCESS: u32 = 16;
}

/// Keys of a tile, and the mask of each half of the queries.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct KeyTile {
    /// First key of each piece. A piece past the last key is zeros.
    pub keys: [u32; 2],
    /// For each half the index of its mask, [`MASK_ALL`] or [`MASK_NONE`].
    pub masks: [u32; 2],
}

/// Work item: 128 queries of a head with all of their tiles of keys, or some of them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Queries {
    /// First query, or [`NO_STRIP`](crate::abi::NO_STRIP).
    pub row: u32,
    /// Head of the queries.
    pub head: u32,
    /// Head of the keys and values.
    pub key_head: u32,
    /// Index of the first [`KeyTile`].
    pub tile: u32,
    /// Number of tiles; with 0, zeros are written for queries without entries.
    pub tiles: u32,
    /// First slot of partial sums of these queries.
    pub first: u32,
    /// Index of this part in the low 16 bits, number of parts from bit 16 on; 1 part if the queries are not split.
    pub parts: u32,
    /// Index of the pair of arrival counters of these queries.
    pub counter: u32,
}

impl Queries {
    /// Returns the index of this part.
    pub const fn part(&self) -> u32 {
        self.parts & 0xffff
    }

    /// Returns the number of parts.
    pub const fn count(&self) -> u32 {
        self.parts >> 16
    }
}

/// Returns the bytes that a warpgroup stores of a part: its accumulators, then base and sum of two rows a thread.
pub const fn attention_partial(chunks: usize) -> usize {
    (chunks * 8 + 1) * 128 * 16
}

/// Parameters of the `attention` kernels. The maps require 64-byte alignment, as in
/// [`WgmmaParams`](crate::families::gemm::abi::WgmmaParams).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AttentionParams {
    /// Queries, `[heads, m, d]`.
    pub q_map: MapWords,
    /// Keys, `[key heads, n, d]`.
    pub k_map: MapWords,
    /// Values, `[key heads, n, d]`.
    pub v_map: MapWords,
    /// [`Queries`] by rounds: the first of every thread block, then the second of every one, and so on.
    pub work: u64,
    /// [`KeyTile`]s.
    pub tiles: u64,
    /// Masks of [`ATTENTION_MASK`] bytes.
    pub masks: u64,
    /// Output, `[heads, m, d]`.
    pub out: u64,
    /// Natural logarithm of the sum of exponentials of each query, f32 `[heads, m]`; or 0.
    pub log_sum: u64,
    /// Partial sums: slots x halves x [`attention_partial`].
    pub partial: u64,
    /// Arrival counters, two for each split group of queries, all zero between launches.
    pub counters: u64,
    /// Bytes of the output from one head to the next.
    pub out_head: u64,
    /// Bytes of the output from one query to the next.
    pub out_row: u32,
    /// Queries of a head.
    pub m: u32,
    /// Number of rounds of the work list.
    pub rounds: u32,
    /// Factor of the scores times log2(e), above 0.
    pub scale: f32,
}

const _: () = assert!(size_of::<KeyTile>() == 16 && size_of::<Queries>() == 32);
const _: () = assert!(size_of::<AttentionParams>() == 464);
