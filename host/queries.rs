//! The work list of the `attention` family: which keys each 128 queries have entries at, gathered to tiles, their masks in
//! the order of the kernel's accumulators, and which multiprocessor takes what. Layout: `einsparse_kernels::abi`.

use std::ops::Range;

use einsparse_kernels::abi::{
    ATTENTION_KEYS, ATTENTION_MASK, ATTENTION_PIECE, HALF, KeyTile, MASK_ALL, MASK_LIMIT,
    MASK_NONE, NO_STRIP, Queries, STRIP,
};
use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::strips::{deal, rounds};
use crate::worklist::Runs;

/// What 128 queries cost beside their tiles, in tiles: filling the ring, the first scores, the last values, and the output.
const QUERIES_TILES: u64 = 2;
/// What a part of them costs more: its partial sums written and read again.
const PART_TILES: u64 = 2;
/// Words of the mask of a half and a tile.
const WORDS: usize = ATTENTION_MASK / 4;

/// The entries of a mask, in any format in row order, but for those that are hidden.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask<'a> {
    pub runs: &'a Runs,
    /// Columns of blocks, or of entries.
    pub columns: &'a [u32],
    pub block: (usize, usize),
    /// Queries and keys.
    pub shape: [usize; 2],
    /// Keys above their query plus this are hidden.
    pub causal: Option<i64>,
    /// Keys from here on are hidden.
    pub length: usize,
}

impl<'a> Mask<'a> {
    /// Keys of a query, run by run.
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

/// The tiles of a mask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tiles {
    pub tiles: Vec<KeyTile>,
    pub masks: Vec<u32>,
    /// First tile of each 128 queries, and the end of the last.
    pub firsts: Vec<u32>,
}

/// Who computes what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// Queries by rounds, one for each thread block that takes part.
    pub queries: Vec<Queries>,
    pub tiles: Vec<KeyTile>,
    pub masks: Vec<u32>,
    /// Thread blocks that take part.
    pub blocks: usize,
    /// Partial sums.
    pub slots: u32,
    /// Queries that were cut.
    pub counters: u32,
}

/// Thread of a warpgroup, bit of its 32 that say which accumulators of a piece are there: of a query of 64 and a key of 64.
/// [`accumulator`](einsparse_kernels::frag::accumulator), the other way round.
const fn place(query: usize, key: usize) -> (usize, u32) {
    let lane = query % 8 * 4 + key % 8 / 2;
    let register = query % 16 / 8 * 2 + key % 2;
    (query / 16 * 32 + lane, (key / 8 * 4 + register) as u32)
}

/// Tiles of the queries from `top` on; masks are counted from 0.
fn strip(mask: Mask<'_>, top: usize) -> (Vec<KeyTile>, Vec<u32>) {
    let rows = top..(top + STRIP).min(mask.shape[0]);
    let mut there = vec![false; mask.shape[1].div_ceil(ATTENTION_PIECE)];
    for keys in rows.clone().flat_map(|row| mask.row(row)) {
        let pieces = keys.start / ATTENTION_PIECE..=(keys.end - 1) / ATTENTION_PIECE;
        there[pieces].fill(true);
    }
    let pieces: Vec<usize> = (0..there.len()).filter(|&p| there[p]).collect();
    // Which of the pieces each one is.
    let mut index = vec![0; there.len()];
    for (i, &piece) in pieces.iter().enumerate() {
        index[piece] = i;
    }
    let count = pieces.len().div_ceil(2);
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
        // Past the last key there are zeros.
        let key = |i: usize| match pieces.get(2 * t + i) {
            Some(&piece) => (piece * ATTENTION_PIECE) as u32,
            None => mask.shape[1].next_multiple_of(ATTENTION_PIECE) as u32,
        };
        KeyTile {
            keys: [key(0), key(1)],
            masks: own,
        }
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
        let mut all = Tiles {
            firsts: vec![0],
            ..Tiles::default()
        };
        for (tiles, masks) in strips {
            all.append(&tiles, &masks)?;
            all.firsts.push(all.tiles.len() as u32);
        }
        Ok(all)
    }

    /// Takes tiles over; where they begin.
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

impl Work {
    /// Deals the queries of all heads to `blocks` thread blocks, longest first to the least loaded; cut along the keys where
    /// that shortens the whole. `masks`: which of the tiles each head has. Query heads share key heads in equal groups.
    pub(crate) fn new(
        tiles: &[Tiles],
        masks: &[usize],
        key_heads: usize,
        blocks: usize,
    ) -> Result<Work> {
        let mut all = Tiles::default();
        let bases: Vec<u32> = tiles
            .iter()
            .map(|t| all.append(&t.tiles, &t.masks))
            .collect::<Result<_>>()?;
        let group = masks.len() / key_heads.max(1);
        let mut whole = Vec::new();
        for (head, &mask) in masks.iter().enumerate() {
            let firsts = &tiles[mask].firsts;
            for (i, span) in firsts.windows(2).enumerate() {
                whole.push(Queries {
                    row: (i * STRIP) as u32,
                    head: head as u32,
                    key_head: (head / group.max(1)) as u32,
                    tile: bases[mask] + span[0],
                    tiles: span[1] - span[0],
                    parts: 1 << 16,
                    ..Queries::default()
                });
            }
        }
        let total: u64 = whole.iter().map(cost).sum();
        let fair = total.div_ceil(blocks.max(1) as u64);
        let longest = whole.iter().map(|q| q.tiles).max().unwrap_or(0);
        let mut best = Dealt::new(&whole, blocks, u32::MAX);
        for limit in (1..=4).map(|share| (fair / share).max(4)) {
            if limit < u64::from(longest) {
                let cut = Dealt::new(&whole, blocks, limit as u32);
                // A cut costs memory and a second pass over it: it has to pay.
                if cut.longest * 20 < best.longest * 19 {
                    best = cut;
                }
            }
        }
        let none = Queries {
            row: NO_STRIP,
            ..Queries::default()
        };
        Ok(Work {
            queries: rounds(&best.lists, none),
            tiles: all.tiles,
            masks: all.masks,
            blocks: best.lists.len(),
            slots: best.slots,
            counters: best.counters,
        })
    }
}

/// Lists of the thread blocks, with no part of more than so many tiles.
struct Dealt {
    lists: Vec<Vec<Queries>>,
    longest: u64,
    slots: u32,
    counters: u32,
}

impl Dealt {
    fn new(whole: &[Queries], blocks: usize, limit: u32) -> Dealt {
        let (mut slots, mut counters) = (0, 0);
        let mut tasks = Vec::new();
        for queries in whole {
            let parts = queries.tiles.div_ceil(limit).max(1);
            // Sizes that differ by one at the most.
            let from =
                |part: u32| (queries.tiles as u64 * u64::from(part) / u64::from(parts)) as u32;
            for part in 0..parts {
                tasks.push(Queries {
                    tile: queries.tile + from(part),
                    tiles: from(part + 1) - from(part),
                    first: slots,
                    parts: part | parts << 16,
                    counter: counters,
                    ..*queries
                });
            }
            if parts > 1 {
                slots += parts;
                counters += 1;
            }
        }
        let (mut lists, longest) = deal(tasks, blocks, cost);
        // What is cut comes first: the last to arrive adds up while others still compute.
        for list in &mut lists {
            list.sort_by_key(|queries| queries.count() == 1);
        }
        Dealt {
            lists,
            longest,
            slots,
            counters,
        }
    }
}

fn cost(queries: &Queries) -> u64 {
    let part = if queries.count() > 1 { PART_TILES } else { 0 };
    u64::from(queries.tiles) + QUERIES_TILES + part
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use einsparse_kernels::frag;

    use super::*;

    /// Rows with these columns.
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

    /// Some columns of `n` in each of `m` rows; some rows have none, and some all.
    fn pattern(m: u32, n: u32) -> Vec<Vec<u32>> {
        let keep = |row: u32, column: u32| match row % 7 {
            0 => false,
            1 => true,
            _ => (row * 31 + column * 17).is_multiple_of(11),
        };
        (0..m)
            .map(|row| (0..n).filter(|&c| keep(row, c)).collect())
            .collect()
    }

    /// What a mask's bits say, read as the kernel does.
    fn entries(tiles: &Tiles, n: usize) -> BTreeSet<(usize, usize)> {
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
                        assert!((key as usize) < n, "key {key} of {n}");
                        assert!(found.insert((query, key as usize)), "{query} {key} twice");
                    }
                }
            }
        }
        found
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
            assert_eq!(entries(&tiles, n as usize), wanted);
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

    /// Every tile of every head's queries is dealt once, whatever is cut; parts follow each other.
    #[test]
    fn every_tile_is_dealt_once() {
        let of = |counts: &[u32]| {
            let mut firsts = vec![0];
            counts
                .iter()
                .for_each(|c| firsts.push(firsts[firsts.len() - 1] + c));
            Tiles {
                tiles: vec![KeyTile::default(); firsts[counts.len()] as usize],
                masks: vec![0; WORDS],
                firsts,
            }
        };
        for (counts, heads, key_heads, blocks) in [
            (vec![], 2, 1, 3),
            (vec![0, 5, 0], 4, 2, 2),
            ((1..=96).collect::<Vec<u32>>(), 1, 1, 132),
            ((1..=96).collect(), 8, 8, 132),
            (vec![400, 3, 1], 2, 1, 132),
        ] {
            let tiles = [of(&counts), of(&[7, 7, 7])];
            let mut masks = vec![0; heads];
            if heads == 4 {
                masks[3] = 1;
            }
            let work = Work::new(&tiles, &masks, key_heads, blocks).unwrap();
            let mut met: BTreeMap<(u32, u32), Vec<Queries>> = BTreeMap::new();
            for queries in work.queries.iter().filter(|q| q.row != NO_STRIP) {
                let key = (queries.head, queries.row / STRIP as u32);
                met.entry(key).or_default().push(*queries);
            }
            let mut slots = BTreeSet::new();
            for (head, &mask) in masks.iter().enumerate() {
                for (strip, span) in tiles[mask].firsts.windows(2).enumerate() {
                    let mut parts = met.remove(&(head as u32, strip as u32)).unwrap();
                    parts.sort_by_key(Queries::part);
                    let mut at = span[0]
                        + if mask == 1 {
                            tiles[0].tiles.len() as u32
                        } else {
                            0
                        };
                    let count: u32 = parts.iter().map(|q| q.tiles).sum();
                    assert_eq!(
                        (count, parts.len()),
                        (span[1] - span[0], parts[0].count() as usize)
                    );
                    for (i, part) in parts.iter().enumerate() {
                        assert_eq!((part.part(), part.tile), (i as u32, at));
                        assert_eq!(part.key_head as usize, head / (heads / key_heads));
                        assert!(part.count() == 1 || slots.insert(part.first + part.part()));
                        at += part.tiles;
                    }
                }
            }
            assert!(met.is_empty());
            assert_eq!(slots.len() as u32, work.slots);
        }
    }
}
