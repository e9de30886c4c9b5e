//! The kernels `key_blocks`: builds the work list of the module `attention` on the device, from the key blocks listed
//! for each 64 queries. Keys are hidden only by a length and above a diagonal, so only the last two tiles of a class
//! can need their own masks (`tests` below).

use super::masks::{MASK_CLASSES, MASK_KEYS, MASK_PIECE};
use crate::abi::{SCAN_THREADS, Tile};

/// Last tiles of a class, which may need their own masks.
pub const BLOCK_ENDS: u32 = 2;
/// Masks allocated for 128 queries, one for each half of each such tile.
pub const BLOCK_MASKS: u32 = MASK_CLASSES as u32 * BLOCK_ENDS * 2;
/// Max number of key blocks.
pub const BLOCKS_MOST: u32 = MASK_KEYS / MASK_PIECE;

/// Offset in shared memory of the bits of the blocks that each half lists. The bytes before belong to a scan.
pub const BLOCK_BITS: u32 = 64;
/// Offset of the lists of each class, [`BLOCKS_MOST`] words each.
pub const BLOCK_LISTS: u32 = BLOCK_BITS + 2 * BLOCKS_MOST / 8;

/// Returns one past the last key visible to a query, with `length` keys, up to key `query + causal`.
#[inline(always)]
pub fn key_end(query: u32, length: u32, causal: i32) -> u32 {
    let limit = (query as i32).saturating_add(causal).saturating_add(1);
    length.min(limit.max(0) as u32)
}

/// Tile of the module: a thread block for each 128 queries of a mask.
#[derive(Clone, Copy, Debug)]
pub struct KeyBlocks;

impl Tile for KeyBlocks {
    const THREADS: u32 = SCAN_THREADS;
    const MIN_BLOCKS: u32 = 6;
    const COLUMNS: u32 = 1;
    const BLOCK: (u32, u32) = (128, MASK_PIECE);
    const SHARED_BYTES: u32 = BLOCK_LISTS + MASK_CLASSES as u32 * BLOCKS_MOST * 4;
    const ACCESS: u32 = 1;
}

/// Parameters of the `key_blocks` kernel, which has a thread block for 128 queries (x) of a mask (y).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyBlocksParams {
    /// Indices of blocks of 64 keys, i32, `most` for each 64 queries. Invalid indices are ignored.
    pub blocks: u64,
    /// Number of keys of each mask, i32, or 0.
    pub lengths: u64,
    /// Out: [`KeyTile`](super::KeyTile)s, `capacity` for each 128 queries of a mask.
    pub tiles: u64,
    /// Out: masks of [`ATTENTION_MASK`](super::ATTENTION_MASK) bytes, [`BLOCK_MASKS`] for each 128 queries of a mask.
    pub masks: u64,
    /// Out: [`Queries`](super::Queries), head by head, followed by items without queries.
    pub work: u64,
    /// Bytes of block lists from one mask to the next, 0 if all masks share one list.
    pub mask_bytes: u64,
    /// Bytes from the blocks of 64 queries to those of the next 64.
    pub row_bytes: u64,
    /// Number of queries.
    pub m: u32,
    /// Number of keys.
    pub n: u32,
    /// Keys above their query plus this are hidden.
    pub causal: i32,
    /// Max blocks listed for 64 queries.
    pub most: u32,
    /// Max tiles of 128 queries.
    pub capacity: u32,
    /// Neighbouring heads that share a mask.
    pub sharing: u32,
    /// Neighbouring heads that share a key head.
    pub group: u32,
    /// Groups of 128 queries of all heads.
    pub groups: u32,
    /// Capacity of the work list in [`Queries`](super::Queries).
    pub room: u32,
    /// Padding; zero.
    pub unused: u32,
}

const _: () = assert!(size_of::<KeyBlocksParams>() == 96);

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::super::masks::mask_tiles;
    use super::*;

    /// Blocks with some keys hidden are among the last two of their class, and tiles are within the limit, for any
    /// length and diagonal: all blocks are listed here, and also for each half alone.
    #[test]
    fn tiles_with_masks_are_the_last_of_their_class() {
        let (m, n) = (256, 448);
        for length in [0, 1, 64, 100, 128, 447, 448] {
            for causal in [-200, -64, -1, 0, 1, 63, 64, 130, i32::MAX] {
                for (top, named) in [(0, [1, 1]), (128, [1, 1]), (0, [1, 0]), (128, [0, 1])] {
                    let mut classes = [const { Vec::new() }; MASK_CLASSES];
                    let edge = |half: u32, i: u32| {
                        key_end((top + half * 64 + i).min(m - 1), length, causal)
                    };
                    for block in 0..n / 64 {
                        let sees = [0, 1]
                            .map(|half| named[half as usize] != 0 && block * 64 < edge(half, 63));
                        match sees {
                            [true, true] => classes[0].push(block),
                            [true, false] => classes[1].push(block),
                            [false, true] => classes[2].push(block),
                            _ => (),
                        }
                    }
                    for (class, blocks) in classes.iter().enumerate() {
                        for (i, block) in blocks.iter().enumerate() {
                            let own = |half: u32| class == 0 || class == half as usize + 1;
                            let partial = |half: u32| own(half) && (block + 1) * 64 > edge(half, 0);
                            let last = (i / 2 + BLOCK_ENDS as usize) >= blocks.len().div_ceil(2);
                            assert!(last || !(partial(0) || partial(1)), "{length} {causal}");
                        }
                    }
                    let tiles: usize = classes.iter().map(|c| c.len().div_ceil(2)).sum();
                    assert!(tiles <= mask_tiles((n / 64) as usize));
                }
            }
        }
    }
}
