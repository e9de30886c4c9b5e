//! Distribution and order of CTA tiles (`Strip`s) on multiprocessors.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use einsparse_kernels::abi::{NO_STRIP, STRIP, Strip};

use super::Span;

/// Cost of a CTA tile in addition to its stages, in stages: filling the pipeline and storing C (2,700 to 4,700 clocks;
/// a stage takes about 1,000).
const STRIP_STAGES: u64 = 4;
/// Extra cost of a part of a cut tile, in stages: its 128 KB of partial sums are written and read again.
const PART_STAGES: u64 = 12;
/// Consecutive row blocks before the next column tile: their A and the columns' B share L2.
const RASTER: usize = 8;

/// Columns of C in tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiles {
    /// Columns of a tile.
    pub columns: usize,
    /// Tiles across one C.
    pub across: usize,
    /// Number of matrices C.
    pub items: usize,
}

impl Tiles {
    pub(crate) fn new(columns: usize, n: usize, items: usize) -> Tiles {
        Tiles { columns, across: n.div_ceil(columns), items }
    }

    fn all(self) -> usize {
        self.across * self.items
    }
}

/// Distribution of CTA tiles over thread blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// CTA tiles by rounds: one for each active thread block.
    pub strips: Vec<Strip>,
    /// Active thread blocks.
    pub blocks: usize,
    /// CTA tiles without the padding of rounds.
    pub count: usize,
    /// Partial sums.
    pub slots: u32,
    /// CTA tiles that are cut along k.
    pub cut: u32,
    /// Load of the busiest thread block, in stages.
    pub longest: u64,
}

impl Schedule {
    /// Distributes all CTA tiles over `blocks` thread blocks. The longest tile goes first, to the thread block with the
    /// smallest load. Tiles far longer than a fair share are cut along k if that shortens the schedule.
    pub(crate) fn new(spans: &[Span], tiles: Tiles, blocks: usize) -> Schedule {
        let total: u64 = spans.iter().map(|s| u64::from(s.stages) + STRIP_STAGES).sum();
        let fair = (total * tiles.all() as u64).div_ceil(blocks.max(1) as u64);
        let longest = spans.iter().map(|s| u64::from(s.stages)).max().unwrap_or(0);
        let mut best = Self::with_limit(spans, tiles, blocks, u32::MAX);
        let shares = (1..=4).map(|share| fair / share);
        let pieces = (2..=4).map(|parts| longest.div_ceil(parts));
        for limit in shares.chain(pieces).map(|limit| limit.max(4)) {
            if limit < longest {
                let cut = Self::with_limit(spans, tiles, blocks, limit as u32);
                // A cut costs memory and a second pass over its sums, so it must save more than 5 %.
                if cut.longest * 20 < best.longest * 19 {
                    best = cut;
                }
            }
        }
        best
    }

    /// First record of each thread block, one after another. Zeros for a thread block whose first tile is without
    /// stages.
    pub(crate) fn heads(&self, records: &[u32], words: usize) -> Vec<u32> {
        let mut heads = Vec::with_capacity(self.blocks * words);
        for strip in &self.strips[..self.blocks] {
            let at = strip.record as usize * words;
            match records.get(at..at + words) {
                Some(record) if strip.stages > 0 => heads.extend(record),
                _ => heads.resize(heads.len() + words, 0),
            }
        }
        heads
    }

    fn with_limit(spans: &[Span], tiles: Tiles, blocks: usize, limit: u32) -> Schedule {
        let mut tasks = Vec::new();
        let (mut slots, mut cut) = (0, 0);
        for group in (0..spans.len()).step_by(RASTER) {
            for tile in 0..tiles.all() {
                let rows = spans.iter().enumerate().skip(group).take(RASTER);
                for (row, &Span { record, stages }) in rows {
                    let parts = stages.div_ceil(limit).max(1);
                    let each = stages.div_ceil(parts);
                    for part in 0..parts {
                        let at = part * each;
                        tasks.push(Strip {
                            row: (row * STRIP) as u32,
                            column: (tile % tiles.across * tiles.columns) as u32,
                            record: record + at.min(stages),
                            stages: each.min(stages.saturating_sub(at)),
                            first: slots,
                            parts: part | parts << 16,
                            counter: cut,
                            item: (tile / tiles.across) as u32,
                        });
                    }
                    if parts > 1 {
                        slots += parts;
                        cut += 1;
                    }
                }
            }
        }
        let cost = |s: &Strip| {
            let more = if s.count() > 1 { PART_STAGES } else { 0 };
            u64::from(s.stages) + STRIP_STAGES + more
        };
        let count = tasks.len();
        let (mut lists, longest) = deal(tasks, blocks, cost);
        // Every other thread block begins with its short tiles, so that not all store C at the same time.
        lists.iter_mut().skip(1).step_by(2).for_each(|list| list.reverse());
        // Cut tiles still come first: the last thread block to finish one adds the sums while others compute.
        for list in &mut lists {
            list.sort_by_key(|strip| strip.count() == 1);
        }
        let none = Strip { row: NO_STRIP, ..Strip::default() };
        let strips = rounds(&lists, none);
        Schedule { strips, blocks: lists.len(), count, slots, cut, longest }
    }
}

/// Distributes tasks over `blocks` thread blocks. The task with the highest cost goes first, to the thread block with
/// the smallest load. Returns the nonempty lists and the max load.
pub(crate) fn deal<T>(
    mut tasks: Vec<T>,
    blocks: usize,
    cost: impl Fn(&T) -> u64,
) -> (Vec<Vec<T>>, u64) {
    tasks.sort_by_key(|task| Reverse(cost(task)));
    let mut loads: BinaryHeap<_> = (0..blocks).map(|b| Reverse((0u64, b))).collect();
    let mut lists: Vec<Vec<T>> = (0..blocks).map(|_| Vec::new()).collect();
    for task in tasks {
        let Some(Reverse((load, block))) = loads.pop() else {
            break;
        };
        loads.push(Reverse((load + cost(&task), block)));
        lists[block].push(task);
    }
    lists.retain(|list| !list.is_empty());
    let longest = loads.into_iter().map(|Reverse((load, _))| load).max();
    (lists, longest.unwrap_or(0))
}

/// Orders the lists by rounds: the first element of each list, then the second, and so on. `none` replaces elements
/// past the end of a list.
pub(crate) fn rounds<T: Copy>(lists: &[Vec<T>], none: T) -> Vec<T> {
    let rounds = lists.iter().map(Vec::len).max().unwrap_or(0);
    let at = |round: usize| lists.iter().map(move |list| *list.get(round).unwrap_or(&none));
    (0..rounds).flat_map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(stages: &[u32]) -> Vec<Span> {
        let mut record = 0;
        stages
            .iter()
            .map(|&stages| {
                record += stages;
                Span { record: record - stages, stages }
            })
            .collect()
    }

    /// Every stage of every CTA tile is distributed exactly once, with and without cuts.
    #[test]
    fn every_stage_is_dealt_once() {
        for (stages, n, items, blocks) in [
            (vec![], 64, 1, 3),
            (vec![0, 5, 0], 300, 2, 2),
            (vec![7; 9], 256, 1, 132),
            (vec![400, 3, 1, 0, 2], 513, 1, 132),
            (vec![100, 3, 1, 0, 2], 513, 3, 132),
            (vec![64; 64], 8192, 1, 132),
        ] {
            let spans = spans(&stages);
            let schedule = Schedule::new(&spans, Tiles::new(256, n, items), blocks);
            let mut met = std::collections::BTreeMap::new();
            let strips = schedule.strips.iter().filter(|s| s.row != NO_STRIP);
            for strip in strips.clone() {
                let key = (strip.row as usize / STRIP, strip.column, strip.item);
                let parts: &mut Vec<Strip> = met.entry(key).or_default();
                parts.push(*strip);
            }
            assert_eq!(met.len(), stages.len() * n.div_ceil(256) * items);
            assert_eq!(strips.count(), schedule.count);
            let mut counters = std::collections::BTreeSet::new();
            for ((row, ..), mut parts) in met {
                parts.sort_by_key(Strip::part);
                assert_eq!(parts.len(), parts[0].count() as usize);
                let mut at = spans[row].record;
                for (i, part) in parts.iter().enumerate() {
                    assert_eq!((part.part(), part.record), (i as u32, at));
                    at += part.stages;
                }
                assert_eq!(at, spans[row].record + spans[row].stages);
                if parts.len() > 1 {
                    assert!(counters.insert(parts[0].counter));
                    assert!(parts.iter().all(|p| p.first == parts[0].first));
                }
            }
            assert_eq!(counters.len() as u32, schedule.cut);
            // The list of each thread block begins with a tile, has its cut tiles first, and has padding only at the
            // end.
            for block in 0..schedule.blocks {
                let mut list = schedule.strips.iter().skip(block).step_by(schedule.blocks);
                assert!(list.next().is_some_and(|s| s.row != NO_STRIP));
                assert!(list.clone().is_sorted_by_key(|s| s.row == NO_STRIP));
                let strips = list.filter(|s| s.row != NO_STRIP);
                assert!(strips.is_sorted_by_key(|s| s.count() == 1));
            }
        }
    }
}
