//! The modules `attention` and `attention_mma`: `softmax(scale * Q K^T) V` at the entries of a mask, without a score in
//! memory. A thread block takes 128 queries against tiles of 128 gathered keys: two warpgroups of 64 queries, fed by the
//! tensor copy engine, or four warps with 16 queries of either half each, which copy for themselves.

use core::marker::PhantomData;

use crate::abi::{AtomInfo, HALF, LoaderInfo, MapWords, SMEM_TILE, STRIP, Tile, Tma, Wgmma};

/// Neighbouring keys that are copied together.
pub const ATTENTION_PIECE: usize = 64;
/// Keys of a tile: two pieces, which may lie anywhere.
pub const ATTENTION_KEYS: usize = 2 * ATTENTION_PIECE;
/// Bytes of the mask of 64 queries and a tile of keys: for each thread of a warpgroup the bits of its accumulators, two
/// words of 32 (one for each piece).
pub const ATTENTION_MASK: usize = HALF * ATTENTION_KEYS / 8;
/// Instead of the index of a mask: none of these entries is there.
pub const MASK_NONE: u32 = u32::MAX;
/// Instead of the index of a mask: all of them are.
pub const MASK_ALL: u32 = u32::MAX - 1;
/// Most tiles that a mask can index.
pub const MASK_LIMIT: u32 = u32::MAX - 2;

/// Tile of the modules: heads of `CHUNKS` x 64 elements.
#[derive(Clone, Copy, Debug)]
pub struct Attention<const CHUNKS: usize, A = Wgmma, L = Tma>(PhantomData<(A, L)>);

impl<const CHUNKS: usize, A: AtomInfo, L> Attention<CHUNKS, A, L> {
    /// Bytes of 128 queries.
    pub const BYTES: usize = 2 * CHUNKS * SMEM_TILE;
    /// Bytes of the keys or values in a slot: a tile. Where warps wait for their products, a piece.
    pub const SLOT: usize = if A::ASYNCHRONOUS { Self::BYTES } else { Self::BYTES / 2 };
    /// Slots of keys or values in flight. Three pieces leave room for two thread blocks in 164 KB: one computes
    /// exponentials while the other multiplies.
    pub const SLOTS: usize = if A::ASYNCHRONOUS { 5 } else { 3 };
    /// Offset of the ring; the queries lie in front of it.
    pub const RING: usize = Self::BYTES;
    /// Offset of the output buffers, [`SMEM_TILE`] bytes of each 64 queries. A warp that copies for itself stores through
    /// the place of its own queries.
    pub const OUT: usize = if A::ASYNCHRONOUS { Self::RING + Self::SLOTS * Self::SLOT } else { 0 };
    /// Bytes behind the barriers: two words for the split-K fix-up, and sums of exponentials where registers are few.
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

/// The keys of a tile, and which entries of either half of the queries are there.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct KeyTile {
    /// First key of each piece. Past the last key: the piece is zeros.
    pub keys: [u32; 2],
    /// For each half the index of its mask, [`MASK_ALL`] or [`MASK_NONE`].
    pub masks: [u32; 2],
}

/// 128 queries of a head against its tiles of keys, or some of them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Queries {
    /// First query, or [`NO_STRIP`](crate::abi::NO_STRIP).
    pub row: u32,
    /// Head of the queries.
    pub head: u32,
    /// Head of the keys and values.
    pub key_head: u32,
    /// First of the [`KeyTile`]s.
    pub tile: u32,
    /// Tiles; 0 writes queries without entries.
    pub tiles: u32,
    /// First slot of partial sums of these queries.
    pub first: u32,
    /// Which part this is, and from bit 16 on how many there are; 1 for a whole.
    pub parts: u32,
    /// Index of the pair of arrival counters of these queries.
    pub counter: u32,
}

impl Queries {
    /// Which part this is.
    pub const fn part(&self) -> u32 {
        self.parts & 0xffff
    }

    /// Parts of the whole.
    pub const fn count(&self) -> u32 {
        self.parts >> 16
    }
}

/// Bytes that a warpgroup leaves of a part: its accumulators, then base and sum of two rows of each thread.
pub const fn attention_partial(chunks: usize) -> usize {
    (chunks * 8 + 1) * 128 * 16
}

/// Parameters of the `attention` kernels. The maps want 64-byte alignment, as in
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
    /// [`Queries`] by rounds: the first of every thread block, the second of every one, ...
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
    /// Arrival counters, two for each group of queries that is cut, all zero between launches.
    pub counters: u64,
    /// Bytes of the output from one head to the next.
    pub out_head: u64,
    /// Bytes of the output from one query to the next.
    pub out_row: u32,
    /// Queries of a head.
    pub m: u32,
    /// Rounds of the work list.
    pub rounds: u32,
    /// Factor of the scores times log2(e), above 0.
    pub scale: f32,
}

const _: () = assert!(size_of::<KeyTile>() == 16 && size_of::<Queries>() == 32);
const _: () = assert!(size_of::<AttentionParams>() == 464);
