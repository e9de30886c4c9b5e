//! Distribution of queries over thread blocks, and their order.

use einsparse_kernels::abi::{NO_STRIP, STRIP};
use einsparse_kernels::families::{KeyTile, Queries};

use super::Tiles;
use crate::error::Result;
use crate::families::gemm::strips::{deal, rounds};

/// Cost of 128 queries in addition to their tiles, in units of tiles: filling the pipeline, the first scores, the last
/// values, and the output.
const QUERIES_TILES: u64 = 2;
/// Additional cost of a part of a split group: its partial sums are written and read again.
const PART_TILES: u64 = 2;

/// Distributed work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// Queries by rounds, one per thread block in each round.
    pub queries: Vec<Queries>,
    pub tiles: Vec<KeyTile>,
    pub masks: Vec<u32>,
    /// Number of thread blocks in the list.
    pub blocks: usize,
    /// Number of partial sums.
    pub slots: u32,
    /// Number of query groups that are split.
    pub counters: u32,
}

impl Work {
    /// Distributes the queries of all heads over `blocks` thread blocks, longest first, each to the least loaded.
    /// Groups are split along the keys if that shortens the longest list. `masks` is the index into `tiles` of each
    /// head. Query heads share key heads in equal groups.
    pub(crate) fn new(
        tiles: &[Tiles],
        masks: &[usize],
        key_heads: usize,
        blocks: usize,
    ) -> Result<Work> {
        let mut all = Tiles::default();
        let bases: Vec<u32> =
            tiles.iter().map(|t| all.append(&t.tiles, &t.masks)).collect::<Result<_>>()?;
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
                // A split costs memory and a second pass over it, so it must gain 5 %.
                if cut.longest * 20 < best.longest * 19 {
                    best = cut;
                }
            }
        }
        let none = Queries { row: NO_STRIP, ..Queries::default() };
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

/// Lists of the thread blocks. No part has more tiles than the limit.
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
            // Sizes of parts differ by at most one.
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
        // Split groups come first: the last part to arrive reduces the sums while other thread blocks still compute.
        for list in &mut lists {
            list.sort_by_key(|queries| queries.count() == 1);
        }
        Dealt { lists, longest, slots, counters }
    }
}

fn cost(queries: &Queries) -> u64 {
    let part = if queries.count() > 1 { PART_TILES } else { 0 };
    u64::from(queries.tiles) + QUERIES_TILES + part
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// Tests that every tile of the queries of every head is distributed once, for any split, and that parts are
    /// adjacent.
    #[test]
    fn every_tile_is_dealt_once() {
        let of = |counts: &[u32]| {
            let mut firsts = vec![0];
            counts.iter().for_each(|c| firsts.push(firsts[firsts.len() - 1] + c));
            Tiles {
                tiles: vec![KeyTile::default(); firsts[counts.len()] as usize],
                masks: Vec::new(),
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
                    let mut at = span[0] + if mask == 1 { tiles[0].tiles.len() as u32 } else { 0 };
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
