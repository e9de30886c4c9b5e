//! The module `decode`: one query of each head with the cached keys and values of its sequence
//! (flash-decoding). Host and device share the distribution of keys to thread blocks that is defined here.

use core::marker::PhantomData;

use crate::abi::{LoaderInfo, MapWords, PANEL_BYTES, Tile, Tma};

/// Warps of a thread block. Each has its own ring.
pub const DECODE_WARPS: u32 = 4;
/// Max query heads that share a key head: the rows of an `mma`.
pub const DECODE_GROUP: u32 = 16;
/// Slots of a warp's ring: tiles of keys, or of values.
pub const DECODE_SLOTS: u32 = 3;
/// Max tiles of all warps in a chunk: 1 MB of keys and values.
pub const DECODE_MOST: u32 = 16;

/// Tile of the modules, for heads of `CHUNKS` x 64 elements. A warp alternates between 8 KB of keys and 8 KB of their
/// values.
#[derive(Clone, Copy, Debug)]
pub struct Decode<const CHUNKS: usize, L = Tma>(PhantomData<L>);

impl<const CHUNKS: usize, L> Decode<CHUNKS, L> {
    /// Keys that a warp multiplies at once.
    pub const KEYS: u32 = 64 / CHUNKS as u32;
    /// Bytes of 64 elements of these keys.
    pub const BOX: u32 = Self::KEYS * PANEL_BYTES as u32;
    /// Bytes of a slot: of the keys, or of their values.
    pub const SLOT: u32 = CHUNKS as u32 * Self::BOX;
    /// Bytes of a warp's ring. It holds the warp's sums after the last product.
    pub const RING: u32 = DECODE_SLOTS * Self::SLOT;
    /// Bytes of a row of sums, padded so that a quarter of a warp stores to different banks.
    pub const ROW: u32 = CHUNKS as u32 * 256 + 32;
    /// Offset of base and sum of each row of each warp.
    pub const STATS: u32 = DECODE_WARPS * Self::RING;
    /// Offset of the barriers: full of each slot of each warp.
    pub const BARRIERS: u32 = Self::STATS + DECODE_WARPS * DECODE_GROUP * 8;
    /// Offset of a word shared by all warps.
    pub const TOLD: u32 = Self::BARRIERS + DECODE_WARPS * DECODE_SLOTS * 8;
}

impl<const CHUNKS: usize, L: LoaderInfo> Tile for Decode<CHUNKS, L> {
    const THREADS: u32 = DECODE_WARPS * 32;
    const NEEDS: u32 = L::NEEDS;
    const STANDS_IN: bool = !L::BY_ONE;
    const MIN_BLOCKS: u32 = 2;
    const COLUMNS: u32 = 64 * CHUNKS as u32;
    const BURST: u32 = DECODE_SLOTS;
    const BLOCK: (u32, u32) = (DECODE_GROUP, Self::KEYS);
    const SHARED_BYTES: u32 = Self::TOLD + 16;
    const ACCESS: u32 = 16;
}

/// Returns the keys of a tile of all warps, for heads of `dim` elements.
pub const fn decode_unit(dim: u32) -> u32 {
    match dim {
        64 => 256,
        _ => 128,
    }
}

/// Returns the number of chunks of a sequence, and the tiles (of all warps) in a chunk. Both follow from the length and
/// the plan's `split` alone. A sequence without keys has one chunk, which writes zeros.
#[inline(always)]
pub fn decode_chunks(unit: u32, length: u32, split: u32) -> (u32, u32) {
    let units = length.div_ceil(unit);
    // The result is at most `DECODE_MOST`, and no divisor is 0.
    let each = units.div_ceil(split.max(1)).clamp(1, DECODE_MOST);
    (units.div_ceil(each).max(1), each)
}

/// Parameters of the `decode` kernels. The maps require 64-byte alignment, as in
/// [`WgmmaParams`](crate::families::gemm::abi::WgmmaParams). A pair is a sequence and a key head.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DecodeParams {
    /// Keys, `[pairs, capacity, d]`.
    pub k_map: MapWords,
    /// Values, `[pairs, capacity, d]`.
    pub v_map: MapWords,
    /// Number of keys of each sequence, i32.
    pub lengths: u64,
    /// Queries, `[pairs, group, d]`.
    pub q: u64,
    /// Output, `[pairs, group, d]`.
    pub out: u64,
    /// Key and value of this step, `[pairs, d]`, which are appended to their sequence; or 0.
    pub fresh: [u64; 2],
    /// Key and value cache, to which this step is appended.
    pub cache: [u64; 2],
    /// Bytes of the caches from one pair to the next.
    pub cache_pair: [u64; 2],
    /// Sums of each chunk, f32 `[pairs, slots, group, d]`.
    pub partial: u64,
    /// Base and sum of exponentials of each chunk, f32 `[pairs, slots, group, 2]`.
    pub stats: u64,
    /// Arrival counters of the pairs, all zero between launches.
    pub counters: u64,
    /// Bytes of the caches from one row to the next.
    pub cache_row: [u32; 2],
    /// Bytes of the key and value of this step from one row to the next.
    pub fresh_row: [u32; 2],
    /// Bytes of the queries from one row to the next.
    pub q_row: u32,
    /// Bytes of the output from one row to the next.
    pub out_row: u32,
    /// Number of sequences.
    pub batch: u32,
    /// Number of key heads.
    pub kv_heads: u32,
    /// Query heads that share a key head.
    pub group: u32,
    /// Max keys of a sequence in the cache.
    pub capacity: u32,
    /// Chunks of a pair that fill the GPU.
    pub split: u32,
    /// Max chunks of a pair.
    pub slots: u32,
    /// Factor of the scores times log2(e), above 0.
    pub scale: f32,
}

const _: () = assert!(size_of::<DecodeParams>() == 408);

#[cfg(test)]
mod tests {
    use super::*;

    /// Every key is in one chunk, no chunk is empty, and none is longer than the max.
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
        assert_eq!(decode_unit(64), 4 * <Decode<1>>::KEYS);
        assert_eq!(decode_unit(128), 4 * <Decode<2>>::KEYS);
    }
}
