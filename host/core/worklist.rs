//! Work list of a pattern: the row (or piece of a row) that each segment of lanes, or thread block, processes. Long
//! rows are split for balance. Rows are ordered by length, so that neighbors finish together (row swizzle, Sputnik,
//! arXiv 2006.10901, section 5.1.3).

mod bundles;
mod slabs;

use einsparse_formats::{AnyPattern, AnySparse, Element, PAD, SlicedEllPattern, allocate};
use einsparse_kernels::abi::{Item, Slot, WHOLE_ROW};
use rayon::prelude::*;

use crate::error::Result;
use crate::registry::block_of;

pub(crate) use slabs::{Slab, TooLong};

/// First slot and count of the nonzeros (blocks) of each row (block row).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs {
    /// `(start, len)` of every row, in slots of the index arrays; for N:M and sliced ELLPACK in slots of the values.
    pub rows: Vec<(u32, u32)>,
    /// Sum of the lengths.
    pub total: u64,
    /// Max length.
    pub longest: u32,
}

/// Max sum of the lengths of sixteen adjacent rows.
pub(crate) fn fullest(rows: &[(u32, u32)]) -> u64 {
    let strips = rows.par_chunks(16);
    let sums = strips.map(|strip| strip.iter().map(|&(_, len)| u64::from(len)).sum());
    sums.max().unwrap_or(0)
}

impl Runs {
    fn new(rows: Vec<(u32, u32)>) -> Self {
        let (total, longest) = rows
            .par_iter()
            .map(|&(_, len)| (u64::from(len), len))
            .reduce(|| (0, 0), |a, b| (a.0 + b.0, a.1.max(b.1)));
        Runs { rows, total, longest }
    }

    /// Creates runs from the first slot and count of each row.
    pub(crate) fn of_spans(rows: Vec<(u32, u32)>) -> Runs {
        Runs::new(rows)
    }

    /// Creates runs of rows that start at `offsets`. The last offset is the end of the last row.
    ///
    /// # Errors
    /// If memory is exhausted.
    pub fn of_offsets(offsets: &[u32]) -> Result<Runs> {
        Ok(Runs::new(from_offsets(offsets)?))
    }

    /// Runs of a batch of matrices, stored as a COO tensor of order 3. They are the runs of one matrix with the batch
    /// along its diagonal. Also returns the column of every nonzero in that matrix. `None` for other patterns, or if an
    /// extent is too large.
    pub(crate) fn of_batch(pattern: AnyPattern<'_>) -> Result<Option<(Runs, Vec<u32>)>> {
        let (AnyPattern::Coo(a), &[items, rows, columns]) = (pattern, pattern.shape()) else {
            return Ok(None);
        };
        let [item_of, row_of, column_of] = a.coords() else {
            return Ok(None);
        };
        let fits = |extent: usize| items.checked_mul(extent).is_some_and(|n| n < u32::MAX as usize);
        if !fits(rows) || !fits(columns) {
            return Ok(None);
        }
        within("rows of all items", items * rows, pattern)?;
        let along = |index: &[u32], extent: usize| -> Vec<u32> {
            let places = index.par_iter().zip(item_of);
            places.map(|(&i, &item)| item * extent as u32 + i).collect()
        };
        let rows_of = along(row_of, rows);
        let runs = Runs::new(from_sorted(&rows_of, items * rows, 1, |_| 1)?);
        Ok(Some((runs, along(column_of, columns))))
    }

    /// First slot and count of every row, in the layout that kernels read.
    pub fn spans(&self) -> Vec<[u32; 2]> {
        self.rows.par_iter().map(|&(start, len)| [start, len]).collect()
    }

    /// Runs of a matrix whose rows are contiguous. `None` for other formats (CSC, formats grouped on another axis than
    /// 0, tensors of another order than 2).
    ///
    /// # Errors
    /// [`FormatError::Limit`](einsparse_formats::FormatError::Limit) if there are many more rows than nonzeros,
    /// [`FormatError::Memory`](einsparse_formats::FormatError::Memory) if memory is exhausted.
    pub fn of<T: Element>(matrix: &AnySparse<T>) -> Result<Option<Runs>> {
        Runs::of_pattern(matrix.pattern())
    }

    pub(crate) fn of_pattern(matrix: AnyPattern<'_>) -> Result<Option<Runs>> {
        let &[rows, _] = matrix.shape() else {
            return Ok(None);
        };
        let block_rows = rows.div_ceil(block_of(&matrix.format()).0);
        match matrix {
            AnyPattern::Csc(_) => return Ok(None),
            AnyPattern::GroupCoo(a) if a.axis() != 0 => return Ok(None),
            _ if block_rows < rows => within("block rows", block_rows, matrix)?,
            _ => within("rows", rows, matrix)?,
        }
        let counted = |counts: Vec<u32>| each_row(rows, &|row| (0, counts[row]));
        let runs = match matrix {
            AnyPattern::Csr(a) => from_offsets(a.offsets()),
            AnyPattern::Bsr(a) => from_offsets(a.offsets()),
            AnyPattern::Coo(a) => from_sorted(&a.coords()[0], rows, 1, |_| 1),
            AnyPattern::Ell(a) => {
                let width = a.width();
                let columns = a.columns();
                each_row(rows, &|r| ((r * width) as u32, filled(&columns[r * width..][..width])))
            }
            AnyPattern::GroupCoo(a) if a.axis() == 0 => {
                let (g, columns) = (a.group(), &a.others()[0]);
                from_sorted(a.group_index(), rows, g as u32, |p| filled(&columns[p * g..][..g]))
            }
            AnyPattern::HybridGroupCoo(a) => Ok(a.spans()?),
            AnyPattern::BlockCoo(a) => from_sorted(a.block_rows(), block_rows, 1, |_| 1),
            AnyPattern::BlockGroupCoo(a) => {
                let (g, columns) = (a.group(), a.block_cols());
                from_sorted(a.block_rows(), block_rows, g as u32, |p| {
                    filled(&columns[p * g..][..g])
                })
            }
            AnyPattern::Nm(a) => {
                let slots = a.row_slots() as u32;
                each_row(rows, &|row| (row as u32 * slots, slots))
            }
            // Only the counts are needed: kernels find tiles by their starts.
            AnyPattern::Bitmap(a) => counted(a.row_counts()?),
            AnyPattern::Bytemap(a) => counted(a.row_counts()?),
            AnyPattern::SlicedEll(a) => of_slices(a),
            AnyPattern::Csc(_) | AnyPattern::GroupCoo(_) => return Ok(None),
        };
        Ok(Some(Runs::new(runs?)))
    }
}

/// Refuses a list of rows (first slot and count) that uses more memory than is allowed for the pattern.
fn within(what: &'static str, rows: usize, pattern: AnyPattern<'_>) -> Result<()> {
    let held = allocate::bytes_of(&pattern.arrays()) + 4 * pattern.slots() as u64;
    Ok(allocate::extent(what, rows as u128, size_of::<(u32, u32)>(), held)?)
}

/// Calls `of(row)` for every row.
fn each_row(rows: usize, of: &(dyn Fn(usize) -> (u32, u32) + Sync)) -> Result<Vec<(u32, u32)>> {
    Ok(allocate::each("runs of rows", rows, of)?)
}

/// First slot and number of nonzeros of every row of sliced ELLPACK. A row is stored in chunks of four slots, which are
/// at a constant distance.
fn of_slices(sell: &SlicedEllPattern) -> Result<Vec<(u32, u32)>> {
    let mut runs = allocate::filled("runs of rows", sell.rows(), (0, 0))?;
    let of = |place: usize| {
        let (slice, lane) = (place / SlicedEllPattern::SLICE, place % SlicedEllPattern::SLICE);
        let slots = |chunk: usize| {
            let first = (chunk * SlicedEllPattern::SLICE + lane) * SlicedEllPattern::CHUNK;
            first..first + SlicedEllPattern::CHUNK
        };
        let chunks = sell.chunks(slice);
        let start = slots(chunks.start).start as u32;
        let filled = chunks.flat_map(slots).filter(|&s| sell.column(s) != PAD);
        (start, filled.count() as u32)
    };
    let found = each_row(sell.rows(), &of)?;
    for (&row, run) in sell.order().iter().zip(found) {
        runs[row as usize] = run;
    }
    Ok(runs)
}

/// Number of slots before the first padding.
fn filled(slots: &[u32]) -> u32 {
    slots.partition_point(|&s| s != PAD) as u32
}

fn from_offsets(offsets: &[u32]) -> Result<Vec<(u32, u32)>> {
    each_row(offsets.len().saturating_sub(1), &|row| {
        (offsets[row], offsets[row + 1] - offsets[row])
    })
}

/// Runs of ascending row indices, each of which covers `each` slots. Only the last one of a row may be shorter.
fn from_sorted(
    index: &[u32],
    rows: usize,
    each: u32,
    len: impl Fn(usize) -> u32 + Sync,
) -> Result<Vec<(u32, u32)>> {
    let mut runs = allocate::reserved("runs of rows", rows)?;
    (0..rows)
        .into_par_iter()
        .map_init(
            || 0usize,
            |hint, row| {
                let row = row as u32;
                // Rows ascend inside a split, so the search starts at the end of the previous row.
                if index.get(*hint).is_none_or(|&r| r > row) {
                    *hint = 0;
                }
                let first = *hint + index[*hint..].partition_point(|&r| r < row);
                let end = first + index[first..].partition_point(|&r| r == row);
                *hint = end.min(index.len().saturating_sub(1));
                match end - first {
                    0 => (0, 0),
                    n => (first as u32 * each, (n as u32 - 1) * each + len(end - 1)),
                }
            },
        )
        .collect_into_vec(&mut runs);
    Ok(runs)
}

/// Items and slots, ready for upload to a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkList {
    /// Longest pieces first.
    pub items: Vec<Item>,
    /// One slot per piece of a split row.
    pub slots: Vec<Slot>,
    /// Number of split rows.
    pub counters: u32,
}

impl WorkList {
    /// Splits rows longer than `limit` into equal pieces and orders the pieces by length class.
    pub fn new(runs: &Runs, limit: u32) -> Self {
        let limit = limit.max(1);
        let mut list = WorkList::default();
        let mut classes: [Vec<Item>; 33] = std::array::from_fn(|_| Vec::new());
        for (row, &(start, len)) in runs.rows.iter().enumerate() {
            let row = row as u32;
            // A multiple of eight keeps the pieces of aligned walks aligned.
            let piece = len.div_ceil(len.div_ceil(limit).max(1));
            let piece = piece.checked_next_multiple_of(8).unwrap_or(u32::MAX);
            if len <= piece {
                classes[class(len)].push(Item { row, start, len, slot: WHOLE_ROW });
                continue;
            }
            list.cut(row, start, len, piece);
            for item in list.items.drain(..) {
                classes[class(item.len)].push(item);
            }
        }
        list.items = classes.iter().rev().flatten().copied().collect();
        list
    }

    /// Adds a row in pieces of `piece` nonzeros. The last one may be shorter.
    pub(crate) fn cut(&mut self, row: u32, start: u32, len: u32, piece: u32) {
        let (first, count) = (self.slots.len() as u32, len.div_ceil(piece));
        for i in 0..count {
            let at = i * piece;
            self.items.push(Item {
                row,
                start: start + at,
                len: piece.min(len - at),
                slot: first + i,
            });
            self.slots.push(Slot { counter: self.counters, first, count, reserved: 0 });
        }
        self.counters += 1;
    }
}

/// Runs of at most `limit` nonzeros of a row, longest class first. They are for kernels that carry nothing from one
/// nonzero to the next, and that write nothing for empty rows.
pub fn pieces(runs: &Runs, limit: u32) -> Vec<Item> {
    let limit = limit.max(1);
    let mut classes: [Vec<Item>; 33] = std::array::from_fn(|_| Vec::new());
    for (row, &(start, len)) in runs.rows.iter().enumerate() {
        let mut at = 0;
        while at < len {
            let item = Item {
                row: row as u32,
                start: start + at,
                len: limit.min(len - at),
                slot: WHOLE_ROW,
            };
            classes[class(item.len)].push(item);
            at += item.len;
        }
    }
    classes.iter().rev().flatten().copied().collect()
}

/// Length class: 0, then powers of two. Within a class, rows keep their order and therefore their locality.
fn class(len: u32) -> usize {
    (32 - len.leading_zeros()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn runs(lens: &[u32]) -> Runs {
        let mut at = 0;
        Runs::new(
            lens.iter()
                .map(|&l| {
                    at += l;
                    (at - l, l)
                })
                .collect(),
        )
    }

    #[test]
    fn every_entry_is_in_exactly_one_item() {
        let runs = runs(&[3, 0, 1000, 17, 64, 65, 0, 1]);
        for limit in [1, 7, 8, 64, 5000] {
            let list = WorkList::new(&runs, limit);
            let mut seen = vec![0u32; runs.total as usize];
            for item in &list.items {
                let (start, len) = runs.rows[item.row as usize];
                assert!(item.start >= start && item.start + item.len <= start + len || len == 0);
                seen[item.start as usize..][..item.len as usize].iter_mut().for_each(|s| *s += 1);
                assert_eq!(item.slot == WHOLE_ROW, item.len == len, "{item:?}");
            }
            assert!(seen.iter().all(|&s| s == 1), "limit {limit}");
            assert!(
                (0..8).all(|r| list.items.iter().any(|i| i.row == r)),
                "an empty row is written too"
            );
            assert!(list.items.is_sorted_by_key(|i| std::cmp::Reverse(class(i.len))));
        }
    }

    #[test]
    fn pieces_hold_every_entry_once_and_no_empty_row() {
        let runs = runs(&[3, 0, 1000, 17, 64, 65, 0, 1]);
        for limit in [1, 8, 64, 5000] {
            let list = pieces(&runs, limit);
            let mut seen = vec![0u32; runs.total as usize];
            for item in &list {
                assert!((1..=limit).contains(&item.len), "{item:?}");
                let (start, len) = runs.rows[item.row as usize];
                assert!(item.start >= start && item.start + item.len <= start + len);
                let own = &mut seen[item.start as usize..][..item.len as usize];
                own.iter_mut().for_each(|s| *s += 1);
            }
            assert!(seen.iter().all(|&s| s == 1), "limit {limit}");
            assert!(list.is_sorted_by_key(|i| std::cmp::Reverse(class(i.len))));
        }
    }

    #[test]
    fn slots_of_a_row_are_neighbours_in_entry_order() {
        let list = WorkList::new(&runs(&[100, 900, 20]), 64);
        for item in list.items.iter().filter(|i| i.slot != WHOLE_ROW) {
            let slot = list.slots[item.slot as usize];
            let others = list.items.iter().filter(|o| o.row == item.row);
            assert_eq!(others.count() as u32, slot.count);
            let before = list.items.iter().filter(|o| o.row == item.row && o.start < item.start);
            assert_eq!(before.count() as u32, item.slot - slot.first);
        }
        assert_eq!(list.counters, 2);
    }
}
