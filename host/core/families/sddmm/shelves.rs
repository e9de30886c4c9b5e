//! Column partition of the module `sddmm_staged`: ranges of columns whose rows of Y fit in shared memory, the runs of
//! entries in each range, and the number of thread blocks that share a range.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use einsparse_kernels::abi::{Item, WHOLE_ROW};
use einsparse_kernels::families::Shelf;
use rayon::prelude::*;

use crate::worklist::Runs;

/// Max entries of a run: eight reductions.
const MOST_RUN: u32 = 64;
/// Cost of a run in addition to its entries, in entries.
const RUN_ENTRIES: u64 = 4;
/// Cost to copy a row of Y to shared memory, in entries.
const ROW_ENTRIES: u64 = 4;

/// Distribution of ranges and runs over thread blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shelves {
    /// Range and runs of each thread block.
    pub shelves: Vec<Shelf>,
    /// Runs of entries of one row in the columns of one range, in the order of ranges.
    pub items: Vec<Item>,
    /// Columns of a range.
    pub width: usize,
}

/// Cost of runs, in entries, which are rounded up to whole reductions.
fn cost(items: &[Item]) -> u64 {
    let one = |item: &Item| u64::from(item.len.next_multiple_of(8)) + RUN_ENTRIES;
    items.iter().map(one).sum()
}

impl Shelves {
    /// Creates ranges of at most `most` of `n` columns, for as many thread blocks as there are multiprocessors, or more
    /// if there are more ranges.
    pub(crate) fn new(
        (runs, columns): (&Runs, &[u32]),
        n: usize,
        most: usize,
        multiprocessors: usize,
    ) -> Shelves {
        let most = most.clamp(1, n.max(1));
        // Ranges have equal width. The number of ranges is at most half above its minimum; the one that divides the
        // multiprocessors best is used.
        let least = n.div_ceil(most);
        let waste = |count: &usize| {
            let blocks = multiprocessors.max(1) * count.div_ceil(multiprocessors.max(1));
            let idle = blocks % count;
            (idle * 32 / blocks, *count)
        };
        let count = (least..=least + least / 2).min_by_key(waste).unwrap_or(1);
        let width = n.div_ceil(count.max(1)).max(1);
        let ranges: Vec<Vec<Item>> = (0..n.div_ceil(width))
            .into_par_iter()
            .map(|range| items(runs, columns, range * width, width))
            .collect();
        let blocks = multiprocessors.max(1) * ranges.len().div_ceil(multiprocessors.max(1));
        let parts = parts(&ranges, blocks, width);
        let mut list = Shelves { width, ..Shelves::default() };
        for (range, (own, parts)) in ranges.iter().zip(parts).enumerate() {
            let share = cost(own).div_ceil(parts.max(1)).max(1);
            let (mut first, mut load) = (0, 0);
            for i in 0..own.len() {
                load += cost(&own[i..=i]);
                if load >= share || i + 1 == own.len() {
                    list.shelves.push(Shelf {
                        column: (range * width) as u32,
                        columns: width.min(n - range * width) as u32,
                        first: (list.items.len() + first) as u32,
                        items: (i + 1 - first) as u32,
                    });
                    (first, load) = (i + 1, 0);
                }
            }
            list.items.extend(own);
        }
        list
    }
}

/// Runs of the entries in `width` columns from `column` on, row by row.
fn items(runs: &Runs, columns: &[u32], column: usize, width: usize) -> Vec<Item> {
    let mut items = Vec::new();
    for (row, &(start, len)) in runs.rows.iter().enumerate() {
        let own = &columns[start as usize..(start + len) as usize];
        let from = own.partition_point(|&c| (c as usize) < column) as u32;
        let end = own.partition_point(|&c| (c as usize) < column + width) as u32;
        // Pieces have equal length, in whole reductions.
        let pieces = (end - from).div_ceil(MOST_RUN).max(1);
        let piece = (end - from).div_ceil(pieces).next_multiple_of(8).max(8);
        for at in (from..end).step_by(piece as usize) {
            items.push(Item {
                row: row as u32,
                start: start + at,
                len: piece.min(end - at),
                slot: WHOLE_ROW,
            });
        }
    }
    items
}

/// Number of thread blocks of each range. Each further one is assigned to the range whose thread blocks have the
/// highest load.
fn parts(ranges: &[Vec<Item>], blocks: usize, width: usize) -> Vec<u64> {
    let costs: Vec<u64> = ranges.iter().map(|own| cost(own)).collect();
    let mut parts: Vec<u64> = costs.iter().map(|&cost| u64::from(cost > 0)).collect();
    let mut heap: BinaryHeap<_> =
        (0..ranges.len()).filter(|&i| costs[i] > 0).map(|i| (costs[i], Reverse(i))).collect();
    let mut left = (blocks as u64).saturating_sub(parts.iter().sum());
    while left > 0 {
        let Some((share, Reverse(i))) = heap.pop() else {
            break;
        };
        // Another copy of the rows must save more than it costs.
        if share < 2 * ROW_ENTRIES * width as u64 {
            break;
        }
        parts[i] += 1;
        left -= 1;
        heap.push((costs[i] / parts[i], Reverse(i)));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every entry is in one run, in the columns of its thread block.
    #[test]
    fn every_entry_is_on_one_shelf() {
        let (mut rows, mut columns) = (Vec::new(), Vec::new());
        for row in 0..300usize {
            let start = columns.len() as u32;
            let step = 1 + row % 5;
            columns.extend((0..row * 3 % 200).map(|i| (i * step) as u32));
            rows.push((start, columns.len() as u32 - start));
        }
        let runs = Runs { total: columns.len() as u64, longest: 199, rows };
        for (most, blocks) in [(200, 132), (64, 7), (1, 3), (5000, 1)] {
            let list = Shelves::new((&runs, &columns), 1000, most, blocks);
            let mut seen = vec![0; columns.len()];
            let mut taken = 0;
            for shelf in &list.shelves {
                assert_eq!(shelf.first, taken);
                assert!(shelf.items > 0 && shelf.columns as usize <= most);
                taken += shelf.items;
                for item in &list.items[shelf.first as usize..][..shelf.items as usize] {
                    let (start, len) = runs.rows[item.row as usize];
                    assert!(item.start >= start && item.start + item.len <= start + len);
                    for p in item.start..item.start + item.len {
                        let inside = shelf.column..shelf.column + shelf.columns;
                        assert!(inside.contains(&columns[p as usize]));
                        seen[p as usize] += 1;
                    }
                }
            }
            assert!(seen.iter().all(|&s| s == 1), "{most} {blocks}");
            assert_eq!(taken as usize, list.items.len());
        }
        let none = Runs { rows: vec![(0, 0); 3], total: 0, longest: 0 };
        assert!(Shelves::new((&none, &[]), 10, 4, 132).shelves.is_empty());
    }
}
