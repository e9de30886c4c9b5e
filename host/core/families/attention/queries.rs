//! Work list of device module `attention`. It lists the keys at which each group of 128 queries has entries, gathered
//! to tiles, and their masks in the order of the kernel's accumulators. It also assigns the work to thread blocks.
//! Layout: `einsparse_kernels::abi`.

mod deal;
mod flags;

use std::ops::Range;

use einsparse_kernels::abi::{HALF, STRIP};
use einsparse_kernels::families::{
    ATTENTION_KEYS, ATTENTION_MASK, ATTENTION_PIECE, KeyTile, MASK_ALL, MASK_LIMIT, MASK_NONE,
    class_place, class_tiles, classes_pay,
};
use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::worklist::Runs;

pub(crate) use deal::Work;
pub use flags::{Bits, Flags, causal_offset};

/// Words of the mask of a tile and 64 queries.
const WORDS: usize = ATTENTION_MASK / 4;

/// Entries of a mask in any row-ordered format, without the hidden ones.
#[derive(Clone, Copy, Debug)]
pub struct Mask<'a> {
    pub runs: &'a Runs,
    /// Column indices of blocks, or of entries.
    pub columns: &'a [u32],
    pub block: (usize, usize),
    /// Number of queries and keys.
    pub shape: [usize; 2],
    /// Keys above query + this offset are hidden.
    pub causal: Option<i64>,
    /// Keys from this index on are hidden.
    pub length: usize,
}

impl<'a> Mask<'a> {
    /// Returns the keys of a query as ranges.
    pub(crate) fn row(self, row: usize) -> impl Iterator<Item = Range<usize>> + 'a {
        let limit = self.causal.map_or(usize::MAX, |offset| {
            let limit = (row as i64).saturating_add(offset).saturating_add(1);
            usize::try_from(limit).unwrap_or(0)
        });
        let limit = limit.min(self.length).min(self.shape[1]);
        let (start, len) = self.runs.rows[row / self.block.0];
        let width = self.block.1;
        self.columns[start as usize..(start + len) as usize]
            .iter()
            .map(move |&c| {
                let first = c as usize * width;
                first..(first + width).min(limit)
            })
            .filter(|keys| !keys.is_empty())
    }
}

/// Mask, given by its entries or by flags.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'a> {
    Entries(Mask<'a>),
    Flags(&'a Flags),
}

impl Seen<'_> {
    /// Number of queries and keys.
    pub(crate) fn shape(self) -> [usize; 2] {
        match self {
            Seen::Entries(mask) => mask.shape,
            Seen::Flags(flags) => flags.shape,
        }
    }

    pub(crate) fn keys(self, query: usize) -> Vec<usize> {
        match self {
            Seen::Entries(mask) => mask.row(query).flatten().collect(),
            Seen::Flags(flags) => flags.keys(query),
        }
    }

    pub(crate) fn tiles(self) -> Result<Tiles> {
        match self {
            Seen::Entries(mask) => Tiles::new(mask),
            Seen::Flags(flags) => flags.tiles(),
        }
    }
}

/// Tiles of a mask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tiles {
    pub tiles: Vec<KeyTile>,
    pub masks: Vec<u32>,
    /// First tile of each group of 128 queries, and the end of the last group.
    pub firsts: Vec<u32>,
}

/// Returns the thread of the warpgroup, and the bit in its 32-bit word, of a query and a key of a piece of 64 x 64.
/// Inverse of [`accumulator`](einsparse_kernels::frag::accumulator).
const fn place(query: usize, key: usize) -> (usize, u32) {
    let lane = query % 8 * 4 + key % 8 / 2;
    let register = query % 16 / 8 * 2 + key % 2;
    (query / 16 * 32 + lane, (key / 8 * 4 + register) as u32)
}

/// Pairs pieces of keys to tiles, in order or by class. The class of a piece states which halves of the 128 queries
/// have entries there.
fn paired(seen: &[(usize, [bool; 2])]) -> Vec<[Option<usize>; 2]> {
    let tile = |pair: &[usize]| [pair.first().copied(), pair.get(1).copied()];
    let classes = [[true, true], [true, false], [false, true]];
    let classes = classes.map(|own| {
        let pieces = seen.iter().filter(|(_, halves)| *halves == own);
        pieces.map(|(piece, _)| *piece).collect::<Vec<_>>()
    });
    let counts = classes.each_ref().map(|pieces| pieces.len() as u32);
    if !classes_pay(counts) {
        let all: Vec<usize> = seen.iter().map(|(piece, _)| *piece).collect();
        return all.chunks(2).map(tile).collect();
    }
    let tiles = class_tiles(counts);
    let mut all = vec![[None; 2]; tiles.iter().sum::<u32>() as usize];
    for (class, pieces) in classes.iter().enumerate() {
        for (index, pair) in pieces.chunks(2).enumerate() {
            all[class_place(tiles, class, index as u32) as usize] = tile(pair);
        }
    }
    all
}

/// Returns the tiles of the group of queries that begins at `top`; masks are numbered from 0.
fn strip(mask: Mask<'_>, top: usize) -> (Vec<KeyTile>, Vec<u32>) {
    let rows = top..(top + STRIP).min(mask.shape[0]);
    let mut there = vec![[false; 2]; mask.shape[1].div_ceil(ATTENTION_PIECE)];
    for row in rows.clone() {
        for keys in mask.row(row) {
            let pieces = keys.start / ATTENTION_PIECE..=(keys.end - 1) / ATTENTION_PIECE;
            there[pieces].iter_mut().for_each(|halves| halves[(row - top) / HALF] = true);
        }
    }
    let seen = there.iter().copied().enumerate();
    let seen: Vec<_> = seen.filter(|(_, halves)| *halves != [false; 2]).collect();
    let pairs = paired(&seen);
    // Position of each piece in the tiles.
    let mut index = vec![0; there.len()];
    for (i, piece) in pairs.iter().flatten().enumerate() {
        if let Some(piece) = piece {
            index[*piece] = i;
        }
    }
    let count = pairs.len();
    let mut bits = vec![0u32; count * 2 * WORDS];
    for row in rows {
        let (half, query) = ((row - top) / HALF, (row - top) % HALF);
        for key in mask.row(row).flatten() {
            let piece = index[key / ATTENTION_PIECE];
            let (thread, bit) = place(query, key % ATTENTION_PIECE);
            let word = (piece / 2 * 2 + half) * WORDS + thread * 2 + piece % 2;
            bits[word] |= 1 << bit;
        }
    }
    let mut masks = Vec::new();
    let tiles = (0..count).map(|t| {
        let own = [0, 1].map(|half| {
            let words = &bits[(t * 2 + half) * WORDS..][..WORDS];
            if words.iter().all(|&w| w == 0) {
                MASK_NONE
            } else if words.iter().all(|&w| w == u32::MAX) {
                MASK_ALL
            } else {
                masks.extend_from_slice(words);
                (masks.len() / WORDS - 1) as u32
            }
        });
        // Keys from the padded end on are read as zeros.
        let key = |i: usize| match pairs[t][i] {
            Some(piece) => (piece * ATTENTION_PIECE) as u32,
            None => mask.shape[1].next_multiple_of(ATTENTION_PIECE) as u32,
        };
        KeyTile { keys: [key(0), key(1)], masks: own }
    });
    let tiles = tiles.collect();
    (tiles, masks)
}

impl Tiles {
    pub(crate) fn new(mask: Mask<'_>) -> Result<Tiles> {
        let strips: Vec<_> = (0..mask.shape[0].div_ceil(STRIP))
            .into_par_iter()
            .map(|s| strip(mask, s * STRIP))
            .collect();
        Tiles::joined(&strips)
    }

    /// Concatenates the tiles of the groups of 128 queries.
    fn joined(strips: &[(Vec<KeyTile>, Vec<u32>)]) -> Result<Tiles> {
        let mut all = Tiles { firsts: vec![0], ..Tiles::default() };
        for (tiles, masks) in strips {
            all.append(tiles, masks)?;
            all.firsts.push(all.tiles.len() as u32);
        }
        Ok(all)
    }

    /// Appends tiles; returns the index of the first.
    fn append(&mut self, tiles: &[KeyTile], masks: &[u32]) -> Result<u32> {
        let (first, before) = (self.tiles.len(), self.masks.len() / WORDS);
        let many = (first + tiles.len()).max(before + masks.len() / WORDS);
        if many >= MASK_LIMIT as usize {
            return Err(Error::Overflow {
                what: format!("tiles of {ATTENTION_KEYS} keys"),
                value: many as u128,
                limit: u128::from(MASK_LIMIT),
            });
        }
        self.masks.extend_from_slice(masks);
        self.tiles.extend(tiles.iter().map(|tile| KeyTile {
            masks: tile.masks.map(|mask| match mask {
                MASK_NONE | MASK_ALL => mask,
                own => own + before as u32,
            }),
            ..*tile
        }));
        Ok(first as u32)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use einsparse_kernels::frag;

    use super::*;

    /// Creates rows with these columns.
    fn runs(rows: &[Vec<u32>]) -> (Runs, Vec<u32>) {
        let mut start = 0;
        let mut all = Vec::new();
        for row in rows {
            all.push((start, row.len() as u32));
            start += row.len() as u32;
        }
        let runs = Runs {
            rows: all,
            total: u64::from(start),
            longest: rows.iter().map(|r| r.len() as u32).max().unwrap_or(0),
        };
        (runs, rows.concat())
    }

    /// Creates `m` rows with some of `n` columns; some rows are empty, and some full.
    fn pattern(m: u32, n: u32) -> Vec<Vec<u32>> {
        let keep = |row: u32, column: u32| match row % 7 {
            0 => false,
            1 => true,
            _ => (row * 31 + column * 17).is_multiple_of(11),
        };
        (0..m).map(|row| (0..n).filter(|&c| keep(row, c)).collect()).collect()
    }

    /// Decodes the entries of the masks, as the kernel reads them.
    pub(super) fn entries(tiles: &Tiles, n: usize, m: usize) -> BTreeSet<(usize, usize)> {
        let mut found = BTreeSet::new();
        for strip in 0..tiles.firsts.len() - 1 {
            for t in tiles.firsts[strip]..tiles.firsts[strip + 1] {
                let tile = tiles.tiles[t as usize];
                for (half, thread, piece, bit) in (0..2).flat_map(|h| {
                    (0..128usize).flat_map(move |t| {
                        (0..2usize).flat_map(move |p| (0..32u32).map(move |b| (h, t, p, b)))
                    })
                }) {
                    let there = match tile.masks[half] {
                        MASK_NONE => false,
                        MASK_ALL => true,
                        own => {
                            let word = own as usize * WORDS + thread * 2 + piece;
                            tiles.masks[word] >> bit & 1 != 0
                        }
                    };
                    if there {
                        let (row, column) = frag::accumulator(thread as u32 % 32, bit % 4);
                        let query = strip * STRIP + half * HALF + thread / 32 * 16 + row as usize;
                        let key = tile.keys[piece] + bit / 4 * 8 + column;
                        // Queries from `m` on are not stored.
                        if query >= m {
                            continue;
                        }
                        assert!((key as usize) < n, "key {key} of {n}");
                        assert!(found.insert((query, key as usize)), "{query} {key} twice");
                    }
                }
            }
        }
        found
    }

    /// Tests that halves with different pieces have their own tiles, which alternate. Halves with nearly the same
    /// pieces share tiles.
    #[test]
    fn halves_that_see_other_keys_take_turns() {
        let (first, second, both) = ([true, false], [false, true], [true, true]);
        let apart = paired(&[(0, first), (1, second), (4, first), (6, second), (7, both)]);
        assert_eq!(apart, [[Some(7), None], [Some(0), Some(4)], [Some(1), Some(6)]]);
        let near = paired(&[(0, first), (1, both), (2, both), (3, second)]);
        assert_eq!(near, [[Some(0), Some(1)], [Some(2), Some(3)]]);
        assert_eq!(paired(&[]), [[None; 2]; 0]);
    }

    #[test]
    fn masks_say_which_entries_are_there() {
        for (m, n, causal, length) in [
            (1, 1, None, 9),
            (130, 200, None, 200),
            (300, 129, Some(-2), 129),
            (64, 700, Some(500), 333),
        ] {
            let rows = pattern(m, n);
            let (runs, columns) = runs(&rows);
            let mask = Mask {
                runs: &runs,
                columns: &columns,
                block: (1, 1),
                shape: [m as usize, n as usize],
                causal,
                length,
            };
            let tiles = Tiles::new(mask).unwrap();
            let wanted: BTreeSet<_> = (0..m as usize)
                .flat_map(|row| rows[row].iter().map(move |&c| (row, c as usize)))
                .filter(|&(row, c)| c < length && causal.is_none_or(|o| c as i64 <= row as i64 + o))
                .collect();
            assert_eq!(entries(&tiles, n as usize, m as usize), wanted);
        }
    }

    #[test]
    fn full_tiles_need_no_mask() {
        let (runs, columns) = runs(&vec![(0..2).collect(); 2]);
        let mask = Mask {
            runs: &runs,
            columns: &columns,
            block: (64, 64),
            shape: [128, 128],
            causal: None,
            length: 128,
        };
        let tiles = Tiles::new(mask).unwrap();
        assert_eq!(tiles.tiles[0].masks, [MASK_ALL; 2]);
        assert!(tiles.masks.is_empty() && tiles.tiles.len() == 1);
    }
}
