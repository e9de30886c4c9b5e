//! The module `masks`: from flags of an attention mask to the work list of the module `attention`, on the device. What
//! is an entry, and what pieces of 64 queries and 64 keys hold, is said here for both sides.

use crate::abi::Tile;

/// Threads of a thread block that lists tiles.
pub const MASK_THREADS: u32 = 256;
/// Queries and keys of a piece.
pub const MASK_PIECE: u32 = 64;
/// Most keys that a mask made on the device may have.
pub const MASK_KEYS: u32 = 1 << 17;
/// Step of the kernels that make work lists of masks.
pub const STEP_MASKS: u32 = 8;

/// What 128 queries cost beside their tiles, in tiles.
pub const MASK_QUERIES: u32 = 2;
/// Queries of at most so many tiles are not cut.
pub const MASK_WHOLE: u32 = 8;
/// Tiles that a part has at least.
pub const MASK_PART: u32 = 4;

/// Without flags of entries: all are there.
pub const MASK_FULL: u32 = 1;
/// The flags had been written when the launch ahead started: the kernel runs beside that.
pub const MASK_BESIDE: u32 = 2;

/// What a piece of a mask holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cover {
    /// No entry.
    Nothing,
    /// Some entries, perhaps none.
    Some,
    /// All entries.
    All,
}

/// The flags of a mask. An entry is there if its block, its column, its row or its diagonal is, and neither its range
/// of keys nor the limit above the diagonal hides it.
pub trait MaskFlags {
    /// Is the block of this query and key there? Both multiples of 64.
    fn block(&self, query: u32, key: u32) -> bool;
    /// Bits of 64 keys, a multiple of 64 on, that every query sees.
    fn columns(&self, key: u32) -> u64;
    /// Bits of 64 queries, a multiple of 64 on, that see every key.
    fn rows(&self, query: u32) -> u64;
    /// Bits of 64 diagonals from `first` on; number `key - query + m - 1`. Zeros outside the matrix.
    fn diagonals(&self, first: i32) -> u64;
    /// First key that a query may see, and the one behind the last. Neither descends with the query.
    fn range(&self, query: u32) -> [u32; 2];
    /// The ranges of the first and the last query of a piece.
    #[inline(always)]
    fn edges(&self, query: u32, last: u32) -> [[u32; 2]; 2] {
        [query, last].map(|query| self.range(query))
    }
    /// Queries.
    fn m(&self) -> u32;
    /// Keys above their query plus this are hidden.
    fn causal(&self) -> i32;
}

/// Tiles that 128 queries have at the most, of so many pieces of keys: one more where the pieces that either half sees
/// alone have tiles of their own.
pub const fn mask_tiles(pieces: usize) -> usize {
    pieces.div_ceil(2) + 1
}

/// Classes of pieces: those that both halves of 128 queries see, the first alone, the second alone.
pub const MASK_CLASSES: usize = 3;

/// Tiles by class, of pieces by class.
#[inline(always)]
pub fn class_tiles(pieces: [u32; MASK_CLASSES]) -> [u32; MASK_CLASSES] {
    pieces.map(|count| count.div_ceil(2))
}

/// Do the halves multiply fewer tiles where each class has its own?
#[inline(always)]
pub fn classes_pay(pieces: [u32; MASK_CLASSES]) -> bool {
    let [both, first, second] = class_tiles(pieces);
    both + first.max(second) < (pieces[0] + pieces[1] + pieces[2]).div_ceil(2)
}

/// Where tile `index` of a class lies among those of 128 queries: tiles of both halves, then by turns tiles of the first
/// and of the second, so that neither waits long while the other multiplies.
#[inline(always)]
pub fn class_place(tiles: [u32; MASK_CLASSES], class: usize, index: u32) -> u32 {
    let [both, first, second] = tiles;
    match class {
        0 => index,
        1 => both + index + index.min(second),
        _ => both + index + (index + 1).min(first),
    }
}

/// The lowest `count` bits; none below 0.
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

/// The key behind the last one that a query may see.
#[inline(always)]
fn end<F: MaskFlags>(flags: &F, query: u32, range: [u32; 2]) -> i32 {
    (range[1] as i32).min((query as i32).saturating_add(flags.causal()).saturating_add(1))
}

/// What the piece of 64 queries and 64 keys holds. Both multiples of 64.
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

/// Bits of the keys from `key` on, a multiple of 64, that a query with this range has entries at. `block`: theirs.
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

/// The word of a mask that a thread of a warpgroup reads: from the keys of its two queries, eight apart, the bits of
/// its accumulators. `pair` is its lane modulo 4, which has two of every eight keys.
#[inline(always)]
pub const fn mask_word(upper: u64, lower: u64, pair: u32) -> u32 {
    spread(upper >> (2 * pair)) | spread(lower >> (2 * pair)) << 2
}

/// The lowest two bits of every byte to the lowest two of every nibble.
#[inline(always)]
const fn spread(bits: u64) -> u32 {
    let x = bits & 0x0303_0303_0303_0303;
    let x = (x | x >> 4) & 0x0033_0033_0033_0033;
    let x = (x | x >> 8) & 0x0000_3333_0000_3333;
    (x | x >> 16) as u32
}

/// Offsets in shared memory: bits of the columns, of the diagonals that the queries meet, what each piece of keys
/// holds, the list of those that hold something, votes, sums, and what else a thread block says to itself.
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

/// A thread block for each 128 queries of a mask; the last one deals the work of all.
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

/// Parameters of the `masks` kernel. Flags are bytes, of which any bit counts, or 0 for none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MaskParams {
    /// Flags of blocks of 64 x 64, by rows.
    pub blocks: u64,
    /// Flags of keys that every query sees.
    pub columns: u64,
    /// Flags of queries that see every key.
    pub rows: u64,
    /// Flags of diagonals, number `key - query + m - 1`.
    pub diagonals: u64,
    /// Keys of each mask, i32, or 0.
    pub lengths: u64,
    /// First key of each query and the one behind the last, pairs of u32 of which neither descends, or 0.
    pub ranges: u64,
    /// How many queries there are, u32, or 0 for all.
    pub live: u64,
    /// Out: [`KeyTile`](super::KeyTile)s, `capacity` for each 128 queries of a mask.
    pub tiles: u64,
    /// Out: masks of [`ATTENTION_MASK`](super::ATTENTION_MASK) bytes, two for each tile.
    pub masks: u64,
    /// Out: tiles of each 128 queries of a mask.
    pub counts: u64,
    /// Room: what lies in front of each 128 queries of a head, in tiles, and all of them.
    pub prefix: u64,
    /// Out: [`Queries`](super::Queries) by rounds.
    pub work: u64,
    /// How many thread blocks are done; zero between launches.
    pub status: u64,
    /// Bytes of flags from one mask to the next: blocks, columns, rows, diagonals; 0 where one serves all.
    pub mask_bytes: [u64; 4],
    /// Bytes from one row of blocks to the next.
    pub block_row: u64,
    /// Queries.
    pub m: u32,
    /// Keys.
    pub n: u32,
    /// Keys above their query plus this are hidden.
    pub causal: i32,
    /// Groups of 128 queries.
    pub strips: u32,
    /// Tiles of 128 queries at the most.
    pub capacity: u32,
    /// Heads of queries.
    pub heads: u32,
    /// Neighbouring heads that share a mask.
    pub sharing: u32,
    /// Neighbouring heads that share a head of keys.
    pub group: u32,
    /// Thread blocks of the attention.
    pub blocks_of_work: u32,
    /// Rounds that the work list has room for.
    pub rounds: u32,
    /// `MASK_*`.
    pub flags: u32,
    /// Masks.
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

    /// Every tile has a place of its own, and the halves take turns.
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
