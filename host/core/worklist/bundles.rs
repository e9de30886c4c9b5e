//! Work lists for many short rows: adjacent rows form a bundle for one segment of lanes. All CPU cores make the list.

use einsparse_kernels::abi::{BUNDLE, Item, WHOLE_ROW};
use einsparse_kernels::families::{LIST_TILE, ROW_ENTRIES, piece_of};
use rayon::prelude::*;

use super::{Runs, WorkList, class};

impl Runs {
    /// Returns the smallest of `limit`, `2 * limit`, `4 * limit` ... at which longer rows have at most `slots` pieces.
    pub fn limit_within(&self, mut limit: u32, slots: usize) -> u32 {
        let lens = self.rows.par_iter().map(|&(_, len)| len);
        // One pass over all rows: few are longer than the limit.
        let long: Vec<u32> = lens.filter(|&len| len > limit).collect();
        let pieces = |limit: u32| {
            let of = |&len: &u32| match len > limit {
                true => len.div_ceil(limit) as usize,
                false => 0,
            };
            long.par_iter().map(of).sum::<usize>()
        };
        while limit < self.longest && pieces(limit) > slots {
            limit = limit.saturating_mul(2);
        }
        limit
    }
}

impl WorkList {
    /// Creates a list of pieces of rows longer than `limit`, of rows heavier than `weight` by length class, and of
    /// bundles of adjacent other rows. A row weighs its nonzeros plus `ROW_ENTRIES`, a bundle about `weight` and less
    /// than twice that. Rows of a bundle are contiguous, and adjacent rows share rows of B. Kernels `lists` make the
    /// same list on a GPU.
    pub fn bundled(runs: &Runs, limit: u32, weight: u32) -> Self {
        let chunks: Vec<Bundles> = runs
            .rows
            .par_chunks(LIST_TILE as usize)
            .enumerate()
            .map(|(chunk, rows)| Bundles::of(chunk as u32 * LIST_TILE, rows, limit, weight))
            .collect();
        let mut list = WorkList::default();
        for &(row, start, len) in chunks.iter().flat_map(|chunk| &chunk.cut) {
            list.cut(row, start, len, piece_of(len, limit));
        }
        let mut single: Vec<Item> = chunks.iter().flat_map(|c| &c.single).copied().collect();
        single.sort_by_key(|item| std::cmp::Reverse(class(item.len)));
        list.items.append(&mut single);
        for chunk in &chunks {
            list.items.extend_from_slice(&chunk.bundles);
        }
        list
    }

    /// Returns the number of bundles, which are the last items.
    pub fn bundles(&self) -> usize {
        self.items.len() - self.items.partition_point(|item| item.slot != BUNDLE)
    }
}

/// Items of some adjacent rows.
struct Bundles {
    /// Rows longer than the limit: row, start, length.
    cut: Vec<(u32, u32, u32)>,
    /// Rows that are one item each.
    single: Vec<Item>,
    bundles: Vec<Item>,
}

impl Bundles {
    /// Creates the items of `rows`. `first`: index of the first row.
    fn of(first: u32, rows: &[(u32, u32)], limit: u32, weight: u32) -> Self {
        let mut all = Bundles { cut: Vec::new(), single: Vec::new(), bundles: Vec::new() };
        // A row belongs to the bundle whose interval of cumulative weight contains the middle of the row.
        let (mut before, mut open) = (0, None);
        for (row, &(start, len)) in (first..).zip(rows) {
            let own = len.saturating_add(ROW_ENTRIES);
            if own > weight {
                open = None;
                if piece_of(len, limit) < len {
                    all.cut.push((row, start, len));
                } else {
                    let slot = WHOLE_ROW;
                    all.single.push(Item { row, start, len, slot });
                }
                continue;
            }
            let number = Some((before + own / 2) / weight);
            before += own;
            match all.bundles.last_mut() {
                Some(last) if open == number => last.len += 1,
                _ => all.bundles.push(Item { row, start: 0, len: 1, slot: BUNDLE }),
            }
            open = number;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::runs;
    use super::*;

    #[test]
    fn bundles_hold_every_short_row_once_and_pieces_the_others() {
        let lens: Vec<u32> =
            (0..10_000).map(|r| if r % 997 == 3 { 400 } else { r * 37 % 23 }).collect();
        let runs = runs(&lens);
        for (limit, weight) in [(26, 32), (192, 96), (1000, 24)] {
            let list = WorkList::bundled(&runs, limit, weight);
            let mut seen = vec![0u32; lens.len()];
            let mut entries = 0;
            for item in &list.items {
                if item.slot == BUNDLE {
                    let rows = item.row as usize..(item.row + item.len) as usize;
                    let inside = &lens[rows.clone()];
                    assert!(inside.iter().all(|&len| len <= limit), "{item:?}");
                    let all: u32 = inside.iter().map(|len| len + ROW_ENTRIES).sum();
                    assert!(all <= 2 * weight, "{item:?}");
                    entries += inside.iter().sum::<u32>();
                    rows.for_each(|row| seen[row] += 1);
                } else if item.slot == WHOLE_ROW {
                    assert!(item.len + ROW_ENTRIES > weight && item.len <= limit, "{item:?}");
                    seen[item.row as usize] += 1;
                    entries += item.len;
                } else {
                    let slot = list.slots[item.slot as usize];
                    seen[item.row as usize] += u32::from(item.slot == slot.first);
                    entries += item.len;
                }
            }
            assert!(seen.iter().all(|&s| s == 1), "limit {limit}, weight {weight}");
            assert_eq!(u64::from(entries), runs.total);
        }
        assert_eq!(runs.limit_within(24, 10_000), 24);
        assert_eq!(runs.limit_within(24, 30), 384);
        assert_eq!(runs.limit_within(24, 0), 768);
    }
}
