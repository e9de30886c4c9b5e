//! The modules `decode` and `decode_mma`: one query of each head against the keys and values that a cache holds of its sequence
//! (flash-decoding). Which thread block sees which keys is said here for both sides.

use core::marker::PhantomData;

use crate::abi::{LoaderInfo, MapWords, PANEL_BYTES, Tile, Tma};

/// Warps of a thread block, each with a ring of its own.
pub const DECODE_WARPS: usize = 4;
/// Heads of queries at the most that share a head of keys: the rows of an `mma`.
pub const DECODE_GROUP: usize = 16;
/// Tiles of keys, or of values, that a warp has room for.
pub const DECODE_SLOTS: usize = 3;
/// Most keys of a chunk, in tiles of all warps: 1 MB of keys and values.
pub const DECODE_MOST: u32 = 16;

/// Tile of the modules: heads of `CHUNKS` x 64 elements, by turns 8 KB of keys and of their values a warp.
#[derive(Clone, Copy, Debug)]
pub struct Decode<const CHUNKS: usize, L = Tma>(PhantomData<L>);

impl<const CHUNKS: usize, L> Decode<CHUNKS, L> {
    /// Keys that a warp multiplies at once.
    pub const KEYS: usize = 64 / CHUNKS;
    /// Bytes of 64 elements of them.
    pub const BOX: usize = Self::KEYS * PANEL_BYTES;
    /// Bytes of a slot: of the keys, or of their values.
    pub const SLOT: usize = CHUNKS * Self::BOX;
    /// Bytes of a warp's ring. Its sums lie there when all is multiplied.
    pub const RING: usize = DECODE_SLOTS * Self::SLOT;
    /// Bytes of a row of sums: a quarter of a warp stores to different banks.
    pub const ROW: usize = CHUNKS * 256 + 32;
    /// Offset of base and sum of each row of each warp.
    pub const STATS: usize = DECODE_WARPS * Self::RING;
    /// Offset of the barriers: full of each slot of each warp.
    pub const BARRIERS: usize = Self::STATS + DECODE_WARPS * DECODE_GROUP * 8;
    /// Offset of a word for all warps.
    pub const TOLD: usize = Self::BARRIERS + DECODE_WARPS * DECODE_SLOTS * 8;
}

impl<const CHUNKS: usize, L: LoaderInfo> Tile for Decode<CHUNKS, L> {
    const THREADS: u32 = DECODE_WARPS as u32 * 32;
    const NEEDS: u32 = L::NEEDS;
    const STANDS_IN: bool = !L::BY_ONE;
    const MIN_BLOCKS: u32 = 2;
    const COLUMNS: u32 = 64 * CHUNKS as u32;
    const BURST: u32 = DECODE_SLOTS as u32;
    const BLOCK: (u32, u32) = (DECODE_GROUP as u32, Self::KEYS as u32);
    const SHARED_BYTES: u32 = Self::TOLD as u32 + 16;
    const ACCESS: u32 = 16;
}

/// Keys of a tile of all warps, for heads of `dim` elements.
pub const fn decode_unit(dim: u32) -> u32 {
    match dim {
        64 => 256,
        _ => 128,
    }
}

/// How the keys of a sequence are cut: into so many chunks of so many tiles of all warps. It follows from the length
/// and the plan's `split` alone. A sequence without keys has one chunk, which writes zeros.
#[inline(always)]
pub fn decode_chunks(unit: u32, length: u32, split: u32) -> (u32, u32) {
    let units = length.div_ceil(unit);
    // Not above the most, and no divisor is 0.
    let each = units.div_ceil(split.max(1)).clamp(1, DECODE_MOST);
    (units.div_ceil(each).max(1), each)
}

/// Parameters of the `decode` kernels. The maps want 64-byte alignment, as in
/// [`WgmmaParams`](crate::families::gemm::abi::WgmmaParams). A pair is a sequence and a head of keys.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DecodeParams {
    /// Keys, `[pairs, capacity, d]`.
    pub k_map: MapWords,
    /// Values, `[pairs, capacity, d]`.
    pub v_map: MapWords,
    /// Keys of each sequence, i32.
    pub lengths: u64,
    /// Queries, `[pairs, group, d]`.
    pub q: u64,
    /// Output, `[pairs, group, d]`.
    pub out: u64,
    /// Key and value of this step, `[pairs, d]`, which become the last of their sequence; or 0.
    pub fresh: [u64; 2],
    /// The caches, for what is written there.
    pub cache: [u64; 2],
    /// Bytes of the caches from one pair to the next.
    pub cache_pair: [u64; 2],
    /// Sums of each chunk, f32 `[pairs, slots, group, d]`.
    pub partial: u64,
    /// Base and sum of exponentials of each chunk, f32 `[pairs, slots, group, 2]`.
    pub stats: u64,
    /// Arrivals at each pair, all zero between launches.
    pub counters: u64,
    /// Bytes of the caches from one row to the next.
    pub cache_row: [u32; 2],
    /// The same of key and value of this step.
    pub fresh_row: [u32; 2],
    /// The same of the queries.
    pub q_row: u32,
    /// The same of the output.
    pub out_row: u32,
    /// Sequences.
    pub batch: u32,
    /// Heads of keys.
    pub kv_heads: u32,
    /// Heads of queries that share one of keys.
    pub group: u32,
    /// Keys that a sequence has room for.
    pub capacity: u32,
    /// Chunks of a pair that fill the GPU.
    pub split: u32,
    /// Chunks of a pair at the most.
    pub slots: u32,
    /// Factor of the scores times log2(e), above 0.
    pub scale: f32,
}

const _: () = assert!(size_of::<DecodeParams>() == 408);

#[cfg(test)]
mod tests {
    use super::*;

    /// Every key is in one chunk, no chunk is empty, and none is longer than the most.
    #[test]
    fn chunks_cover_the_keys() {
        for dim in [64, 128] {
            let unit = decode_unit(dim);
            for split in [1, 4, 33, 264] {
                for length in [0, 1, unit - 1, unit, unit + 1, 1000, 8192, 32_767, 1_000_000] {
                    let (chunks, each) = decode_chunks(unit, length, split);
                    let own = each * unit;
                    assert!(chunks >= 1 && (1..=DECODE_MOST).contains(&each));
                    assert!(chunks * own >= length);
                    assert!(length == 0 || (chunks - 1) * own < length);
                    assert!(each == DECODE_MOST || chunks <= split);
                }
            }
        }
        assert_eq!(decode_unit(64), 4 * <Decode<1>>::KEYS as u32);
        assert_eq!(decode_unit(128), 4 * <Decode<2>>::KEYS as u32);
    }
}
