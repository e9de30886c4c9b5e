//! The module `masks`: builds the work list of the module `attention` on the device, from flags of an attention mask.
//! Host and device share the definitions of an entry and of the cover of a piece of 64 queries and 64 keys.

use crate::abi::Tile;

/// Threads of a thread block that lists tiles.
pub const MASK_THREADS: u32 = 256;
/// Queries and keys of a piece.
pub const MASK_PIECE: u32 = 64;
/// Max keys of a mask built on the device.
pub const MASK_KEYS: u32 = 1 << 17;
/// Step of the kernels that build work lists of masks.
pub const STEP_MASKS: u32 = 8;

/// Cost of 128 queries in addition to their tiles, in tiles.
pub const MASK_QUERIES: u32 = 2;
/// Queries of up to this many tiles are not split.
pub const MASK_WHOLE: u32 = 8;
/// Min tiles of a part.
pub const MASK_PART: u32 = 4;

/// Without flags of entries: all entries exist.
pub const MASK_FULL: u32 = 1;
/// The flags were complete when the previous launch started, so the kernel runs concurrently with it.
pub const MASK_BESIDE: u32 = 2;

/// Entries of a piece of a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cover {
    /// No entry.
    Nothing,
    /// Some entries, perhaps none.
    Some,
    /// All entries.
    All,
}

/// Flags of a mask. An entry exists if its block, its column, its row or its diagonal is flagged, and neither its range
/// of keys nor the limit above the diagonal hides it.
pub trait MaskFlags {
    /// Returns whether the block of this query and key is flagged. Both are multiples of 64.
    fn block(&self, query: u32, key: u32) -> bool;
    /// Returns the bits of 64 keys that every query sees. `key`: a multiple of 64.
    fn columns(&self, key: u32) -> u64;
    /// Returns the bits of 64 queries that see every key. `query`: a multiple of 64.
    fn rows(&self, query: u32) -> u64;
    /// Returns the bits of 64 diagonals from `first` on, numbered `key - query + m - 1`. Zeros outside the matrix.
    fn diagonals(&self, first: i32) -> u64;
    /// Returns the first key visible to a query, and one past the last. Neither decreases with the query.
    fn range(&self, query: u32) -> [u32; 2];
    /// Returns the ranges of the first and the last query of a piece.
    #[inline(always)]
    fn edges(&self, query: u32, last: u32) -> [[u32; 2]; 2] {
        [query, last].map(|query| self.range(query))
    }
    /// Returns the number of queries.
    fn m(&self) -> u32;
    /// Returns the diagonal limit: keys above their query plus this are hidden.
    fn causal(&self) -> i32;
}

/// Returns the max number of tiles of 128 queries with `pieces` pieces of keys. It has one more, because pieces visible
/// to one half alone may have their own tiles.
pub const fn mask_tiles(pieces: usize) -> usize {
    pieces.div_ceil(2) + 1
}

/// Classes of pieces: visible to both halves of 128 queries, to the first alone, to the second alone.
pub const MASK_CLASSES: usize = 3;

/// Returns the pieces of each class, as bits, from those visible to each half.
#[inline(always)]
pub const fn classes_of([a, b]: [u32; 2]) -> [u32; MASK_CLASSES] {
    [a & b, a & !b, b & !a]
}

/// Returns the tiles of each class from the pieces of each class.
#[inline(always)]
pub fn class_tiles(pieces: [u32; MASK_CLASSES]) -> [u32; MASK_CLASSES] {
    pieces.map(|count| count.div_ceil(2))
}

/// Returns whether the halves multiply fewer tiles if each class has its own.
#[inline(always)]
pub fn classes_pay(pieces: [u32; MASK_CLASSES]) -> bool {
    let [both, first, second] = class_tiles(pieces);
    both + first.max(second) < (pieces[0] + pieces[1] + pieces[2]).div_ceil(2)
}

/// Returns the position of tile `index` of a class among those of 128 queries. Tiles of both halves come first. Then
/// tiles of the first and of the second alternate, so that neither waits long while the other multiplies.
#[inline(always)]
pub fn class_place(tiles: [u32; MASK_CLASSES], class: usize, index: u32) -> u32 {
    let [both, first, second] = tiles;
    match class {
        0 => index,
        1 => both + index + index.min(second),
        _ => both + index + (index + 1).min(first),
    }
}

/// Returns the lowest `count` bits; 0 for a negative count.
#[inline(always)]
pub const fn low_bits(count: i32) -> u64 {
    if count >= 64 {
        u64::MAX
    } else if count <= 0 {
        0
    } else {
        (1 << count) - 1
    }
}

/// Returns one past the last key visible to a query.
#[inline(always)]
fn end<F: MaskFlags>(flags: &F, query: u32, range: [u32; 2]) -> i32 {
    (range[1] as i32).min((query as i32).saturating_add(flags.causal()).saturating_add(1))
}

/// Returns the cover of the piece of 64 queries and 64 keys. Both are multiples of 64.
#[inline(always)]
pub fn cover<F: MaskFlags>(flags: &F, query: u32, key: u32) -> Cover {
    let m = flags.m();
    if query >= m {
        return Cover::Nothing;
    }
    let last = (query + MASK_PIECE - 1).min(m - 1);
    let behind = (last - query) as i32;
    let [first_range, last_range] = flags.edges(query, last);
    let k = key as i32;
    if k >= end(flags, last, last_range) || k + 64 <= first_range[0] as i32 {
        return Cover::Nothing;
    }
    let inside = k >= last_range[0] as i32 && k + 64 <= end(flags, query, first_range);
    let first = k - last as i32 + m as i32 - 1;
    let columns = flags.columns(key);
    let (low, high) = (flags.diagonals(first), flags.diagonals(first + 64));
    let (valid, near) = (low_bits(behind + 1), low_bits(behind));
    let rows = flags.rows(query) & valid;
    let block = flags.block(query, key);
    let full =
        block || columns == u64::MAX || rows == valid || (low == u64::MAX && high & near == near);
    if full && inside {
        Cover::All
    } else if full || columns != 0 || rows != 0 || low != 0 || high & near != 0 {
        Cover::Some
    } else {
        Cover::Nothing
    }
}

/// Returns the entries of a query with this range, as bits of 64 keys from `key` on, a multiple of 64. `block`: flag of
/// their block.
#[inline(always)]
pub fn row_bits<F: MaskFlags>(
    flags: &F,
    query: u32,
    range: [u32; 2],
    key: u32,
    block: bool,
) -> u64 {
    let m = flags.m();
    if query >= m {
        return 0;
    }
    let own = flags.rows(query / MASK_PIECE * MASK_PIECE) >> (query % MASK_PIECE) & 1 != 0;
    let bits = if block || own {
        u64::MAX
    } else {
        let first = key as i32 - query as i32 + m as i32 - 1;
        flags.columns(key) | flags.diagonals(first)
    };
    let k = key as i32;
    bits & low_bits(end(flags, query, range) - k) & !low_bits(range[0] as i32 - k)
}

/// Returns the mask word of a thread of a warpgroup: the bits of its accumulators, from the key bits of its two
/// queries, which are eight apart. `pair` is its lane modulo 4, which has two of every eight keys.
#[inline(always)]
pub const fn mask_word(upper: u64, lower: u64, pair: u32) -> u32 {
    spread(upper >> (2 * pair)) | spread(lower >> (2 * pair)) << 2
}

/// Moves the lowest two bits of every byte to the lowest two of every nibble.
#[inline(always)]
const fn spread(bits: u64) -> u32 {
    let x = bits & 0x0303_0303_0303_0303;
    let x = (x | x >> 4) & 0x0033_0033_0033_0033;
    let x = (x | x >> 8) & 0x0000_3333_0000_3333;
    (x | x >> 16) as u32
}

/// Offsets in shared memory. The order is: bits of the columns, of the diagonals that the queries meet, cover of each
/// piece of keys, list of the nonempty pieces, votes, sums, and other words shared by the thread block.
pub const MASK_DIAGONALS: u32 = MASK_KEYS / 8 + 16;
/// See [`MASK_DIAGONALS`].
pub const MASK_STATES: u32 = MASK_DIAGONALS + (MASK_KEYS + 512) / 8;
/// See [`MASK_DIAGONALS`].
pub const MASK_LIST: u32 = MASK_STATES + MASK_KEYS / MASK_PIECE * 4;
/// See [`MASK_DIAGONALS`].
pub const MASK_VOTES: u32 =
    MASK_LIST + (mask_tiles((MASK_KEYS / MASK_PIECE) as usize) as u32 * 8).next_multiple_of(16);
/// See [`MASK_DIAGONALS`].
pub const MASK_SUMS: u32 = MASK_VOTES + MASK_KEYS / MASK_PIECE / 32 * 8;
/// See [`MASK_DIAGONALS`].
pub const MASK_TOLD: u32 = MASK_SUMS + 64;

/// Tile of the module: a thread block for each 128 queries of a mask. The last one distributes the work of all.
#[derive(Clone, Copy, Debug)]
pub struct MaskTiles;

impl Tile for MaskTiles {
    const THREADS: u32 = MASK_THREADS;
    const MIN_BLOCKS: u32 = 3;
    const COLUMNS: u32 = 1;
    const BLOCK: (u32, u32) = (128, MASK_PIECE);
    const STEP: u32 = STEP_MASKS;
    const SHARED_BYTES: u32 = MASK_TOLD + 16;
    const ACCESS: u32 = 1;
}

/// Parameters of the `masks` kernel. Flags are bytes, set if not zero; an address of 0 means that no flag is set.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MaskParams {
    /// Flags of blocks of 64 x 64, by rows.
    pub blocks: u64,
    /// Flags of keys visible to every query.
    pub columns: u64,
    /// Flags of queries that see every key.
    pub rows: u64,
    /// Flags of diagonals, numbered `key - query + m - 1`.
    pub diagonals: u64,
    /// Number of keys of each mask, i32, or 0.
    pub lengths: u64,
    /// First key of each query and one past the last, pairs of u32 of which neither decreases, or 0.
    pub ranges: u64,
    /// Number of queries, u32, or 0 for all.
    pub live: u64,
    /// Out: [`KeyTile`](super::KeyTile)s, `capacity` for each 128 queries of a mask.
    pub tiles: u64,
    /// Out: masks of [`ATTENTION_MASK`](super::ATTENTION_MASK) bytes, two for each tile.
    pub masks: u64,
    /// Out: number of tiles of each 128 queries of a mask.
    pub counts: u64,
    /// Scratch: tiles before each 128 queries of a head, and the total.
    pub prefix: u64,
    /// Out: [`Queries`](super::Queries) by rounds.
    pub work: u64,
    /// Number of thread blocks that are done; zero between launches.
    pub status: u64,
    /// Bytes of flags from one mask to the next: blocks, columns, rows, diagonals; 0 if all masks share them.
    pub mask_bytes: [u64; 4],
    /// Bytes from one row of blocks to the next.
    pub block_row: u64,
    /// Number of queries.
    pub m: u32,
    /// Number of keys.
    pub n: u32,
    /// Keys above their query plus this are hidden.
    pub causal: i32,
    /// Groups of 128 queries.
    pub strips: u32,
    /// Max tiles of 128 queries.
    pub capacity: u32,
    /// Number of query heads.
    pub heads: u32,
    /// Neighbouring heads that share a mask.
    pub sharing: u32,
    /// Neighbouring heads that share a key head.
    pub group: u32,
    /// Thread blocks of the attention kernel.
    pub blocks_of_work: u32,
    /// Capacity of the work list in rounds.
    pub rounds: u32,
    /// `MASK_*`.
    pub flags: u32,
    /// Number of masks.
    pub count: u32,
}

const _: () = assert!(size_of::<MaskParams>() == 192);

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;
    use crate::frag;

    /// The words that threads read are the bits of their accumulators.
    #[test]
    fn words_are_the_bits_of_accumulators() {
        let (upper, lower) = (0x9e37_79b9_7f4a_7c15u64, 0xc2b2_ae3d_27d4_eb4fu64);
        for lane in 0..32 {
            let word = mask_word(upper, lower, lane % 4);
            for bit in 0..32 {
                let (row, column) = frag::accumulator(lane, bit % 4);
                let key = bit / 4 * 8 + column;
                let of = if row >= 8 { lower } else { upper };
                assert_eq!(word >> bit & 1, (of >> key & 1) as u32, "{lane} {bit}");
            }
        }
    }

    /// Positions of tiles are unique, and the halves alternate.
    #[test]
    fn places_are_those_of_all_tiles() {
        for tiles in [[0, 0, 0], [3, 0, 0], [0, 4, 4], [2, 5, 1], [1, 0, 3], [0, 2, 6]] {
            let mut places = Vec::new();
            for class in 0..MASK_CLASSES {
                places.extend((0..tiles[class]).map(|i| class_place(tiles, class, i)));
            }
            places.sort_unstable();
            let count: u32 = tiles.iter().sum();
            assert_eq!(places, (0..count).collect::<Vec<_>>(), "{tiles:?}");
        }
        assert_eq!([1, 2].map(|class| class_place([1, 2, 2], class, 1)), [3, 4], "by turns");
    }
}
