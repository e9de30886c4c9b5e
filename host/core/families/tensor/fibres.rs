//! Nonzeros of a sparse tensor of any order, sorted by the axes that an output keeps, and the work list over them.

use std::borrow::Cow;

use einsparse_formats::{AnyPattern, PAD};
use einsparse_kernels::abi::{BUNDLE, Item};
use einsparse_kernels::families::LAST_OF_ROW;
use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::worklist::{Runs, WorkList};

/// Selection of the output rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowsOf {
    /// One row for every index of the kept axes.
    All,
    /// One row for every index with nonzeros, in lexicographic order.
    Stored,
}

/// Nonzeros grouped by output row.
#[derive(Debug)]
pub(crate) struct Fibres {
    /// Number of output rows.
    pub(crate) count: usize,
    /// For each factor, the index of every nonzero on its axis. The indices of the first factor carry [`LAST_OF_ROW`].
    pub(crate) places: Vec<Vec<u32>>,
    /// Slot of each nonzero in this order; `None` if the nonzeros are stored in this order.
    pub(crate) permutation: Option<Vec<u32>>,
    /// Number of value slots.
    pub(crate) slots: usize,
    /// Nonzeros of each row that has nonzeros.
    pub(crate) runs: Runs,
    /// Output row of each of these rows, if some output rows are empty.
    pub(crate) rows: Option<Vec<u32>>,
    /// First index and number of adjacent empty rows.
    pub(crate) gaps: Vec<(u32, u32)>,
    /// Index on the kept axes of each row with nonzeros, for [`RowsOf::Stored`].
    pub(crate) keys: Vec<u64>,
}

/// Returns the coordinates of every slot on each axis, [`PAD`] for padding. `None` for formats without coordinates.
pub(crate) fn coordinates(pattern: AnyPattern<'_>) -> Option<Vec<Cow<'_, [u32]>>> {
    let spread = |offsets: &[u32]| -> Vec<u32> {
        let rows = 0..offsets.len().saturating_sub(1);
        let own = |row: usize| vec![row as u32; (offsets[row + 1] - offsets[row]) as usize];
        rows.into_par_iter().flat_map_iter(own).collect()
    };
    Some(match pattern {
        AnyPattern::Coo(a) => {
            let axes = a.coords().iter();
            axes.map(|axis| Cow::Borrowed(axis.as_slice())).collect()
        }
        AnyPattern::Csr(a) => vec![Cow::Owned(spread(a.offsets())), Cow::Borrowed(a.columns())],
        AnyPattern::Csc(a) => vec![Cow::Borrowed(a.rows_idx()), Cow::Owned(spread(a.offsets()))],
        AnyPattern::GroupCoo(p) => {
            let g = p.group();
            let mut axes: Vec<Cow<'_, [u32]>> =
                p.others().iter().map(|axis| Cow::Borrowed(axis.as_slice())).collect();
            let index = p.group_index().par_iter();
            let grouped: Vec<u32> = index.flat_map_iter(|&i| vec![i; g]).collect();
            axes.insert(p.axis(), Cow::Owned(grouped));
            axes
        }
        _ => return None,
    })
}

/// Returns the number of output rows, and validates it against the range of the kernels.
fn counted(shape: &[usize], kept: &[usize], rows: RowsOf) -> Result<u128> {
    for &extent in shape {
        within("extent of a sparse tensor", extent as u128, u128::from(LAST_OF_ROW))?;
    }
    let all = kept.iter().map(|&axis| shape[axis] as u128).product();
    let most = if rows == RowsOf::All { i32::MAX as u128 } else { u128::from(u64::MAX) };
    within("rows of the output", all, most)?;
    Ok(all)
}

impl Fibres {
    /// Sorts the nonzeros by the axes `kept`, in this order. `of_factors` states the axis of each factor. Returns
    /// `None` for formats whose slots have no coordinates.
    ///
    /// # Errors
    /// Returns [`Error::Overflow`] if the rows exceed the range of the kernels, or extents exceed 2^31.
    pub(crate) fn new(
        tensor: AnyPattern<'_>,
        kept: &[usize],
        of_factors: &[usize],
        rows: RowsOf,
    ) -> Result<Option<Self>> {
        let Some(axes) = coordinates(tensor) else {
            return Ok(None);
        };
        let shape = tensor.shape();
        let all = counted(shape, kept, rows)?;
        let slots = tensor.slots();
        let (keys, permutation) = sorted(&axes, shape, kept, slots);
        let entries = keys.len();
        let slot = |at: usize| permutation.as_ref().map_or(at, |order| order[at] as usize);
        let mut places: Vec<Vec<u32>> = of_factors
            .iter()
            .map(|&axis| (0..entries).into_par_iter().map(|at| axes[axis][slot(at)]).collect())
            .collect();
        let starts: Vec<u32> = (0..entries as u32)
            .into_par_iter()
            .filter(|&at| at == 0 || keys[at as usize] != keys[at as usize - 1])
            .collect();
        let ends = starts.iter().skip(1).copied().chain([entries as u32]);
        let ends: Vec<u32> = ends.take(starts.len()).collect();
        for &end in &ends {
            places[0][end as usize - 1] |= LAST_OF_ROW;
        }
        let row_keys: Vec<u64> = starts.par_iter().map(|&at| keys[at as usize]).collect();
        let runs = starts.iter().zip(&ends).map(|(&s, &e)| (s, e - s)).collect();
        let mut own = Fibres {
            count: if rows == RowsOf::All { all as usize } else { starts.len() },
            places,
            permutation,
            slots,
            runs: Runs::of_spans(runs),
            rows: None,
            gaps: Vec::new(),
            keys: Vec::new(),
        };
        match rows {
            RowsOf::Stored => own.keys = row_keys,
            RowsOf::All => own.number(&row_keys),
        }
        Ok(Some(own))
    }

    /// Stores the rows with nonzeros and determines the gaps between them.
    fn number(&mut self, keys: &[u64]) {
        let mut next = 0;
        for &key in keys {
            if key > next {
                self.gaps.push((next as u32, (key - next) as u32));
            }
            next = key + 1;
        }
        if (self.count as u64) > next {
            self.gaps.push((next as u32, (self.count as u64 - next) as u32));
        }
        if !self.gaps.is_empty() {
            self.rows = Some(keys.iter().map(|&key| key as u32).collect());
        }
    }

    /// Number of nonzeros.
    pub(crate) fn entries(&self) -> usize {
        self.runs.total as usize
    }

    /// Makes items of about `weight` nonzeros, longest class first. Items are whole rows. Rows longer than `limit` are
    /// cut into equal pieces of about half that length, whose sums are carried in slots. `clear` adds items for empty
    /// rows.
    pub(crate) fn items(&self, weight: u32, limit: u32, clear: bool) -> WorkList {
        let mut list = WorkList::default();
        let mut open: Option<Item> = None;
        for (rank, &(start, len)) in (0u32..).zip(&self.runs.rows) {
            if len > limit {
                list.items.extend(open.take());
                let piece = len.div_ceil(len.div_ceil(limit / 2));
                list.cut(rank, start, len, piece.next_multiple_of(4));
                continue;
            }
            let item = open.get_or_insert(Item { row: rank, start, len: 0, slot: BUNDLE });
            item.len += len;
            // Items end at a multiple of `weight`, if rows allow, so that the loads of the next item are aligned and
            // share no vector with this item.
            if item.start % weight + item.len >= weight {
                list.items.extend(open.take());
            }
        }
        list.items.extend(open);
        list.items.sort_by_key(|item| item.len.leading_zeros());
        for &(first, count) in self.gaps.iter().filter(|_| clear) {
            for at in (0..count).step_by(CLEARED as usize) {
                list.items.push(Item {
                    row: first + at,
                    start: CLEARED.min(count - at),
                    len: 0,
                    slot: BUNDLE,
                });
            }
        }
        list
    }
}

/// Empty rows that one item clears.
const CLEARED: u32 = 32;

fn within(what: &str, value: u128, limit: u128) -> Result<()> {
    if value <= limit {
        return Ok(());
    }
    Err(Error::Overflow { what: what.into(), value, limit })
}

/// Returns the ascending index of every nonzero on the kept axes, and the slots in that order unless they are sorted.
fn sorted(
    axes: &[Cow<'_, [u32]>],
    shape: &[usize],
    kept: &[usize],
    slots: usize,
) -> (Vec<u64>, Option<Vec<u32>>) {
    let key = |slot: usize| {
        let add = |key: u64, &axis: &usize| key * shape[axis] as u64 + u64::from(axes[axis][slot]);
        kept.iter().fold(0, add)
    };
    let filled = |slot: usize| axes.iter().all(|axis| axis[slot] != PAD);
    let all = (0..slots).into_par_iter().with_min_len(1 << 14);
    if all.clone().all(filled) {
        let keys: Vec<u64> = all.clone().map(key).collect();
        if keys.par_windows(2).all(|w| w[0] <= w[1]) {
            return (keys, None);
        }
    }
    let mut pairs: Vec<(u64, u32)> =
        all.filter(|&slot| filled(slot)).map(|slot| (key(slot), slot as u32)).collect();
    pairs.par_sort_unstable();
    let (keys, slots) = pairs.into_par_iter().unzip();
    (keys, Some(slots))
}

#[cfg(test)]
mod tests {
    use super::*;
    use einsparse_formats::AnySparse;
    use einsparse_formats::{Coo, CooPattern, Format};

    fn tensor() -> AnySparse<f32> {
        let coords = vec![vec![0, 0, 0, 2, 2, 4], vec![1, 1, 2, 0, 3, 1], vec![0, 2, 1, 1, 1, 0]];
        let pattern = CooPattern::new(vec![5, 4, 3], coords).unwrap();
        Coo::new(pattern, vec![1.0; 6]).unwrap().into()
    }

    #[test]
    fn rows_of_the_first_axis_need_no_order_and_leave_gaps() {
        let own = Fibres::new(tensor().pattern(), &[0], &[1, 2], RowsOf::All).unwrap().unwrap();
        assert_eq!(own.permutation, None);
        assert_eq!(own.runs.rows, [(0, 3), (3, 2), (5, 1)]);
        assert_eq!(own.rows, Some(vec![0, 2, 4]));
        assert_eq!(own.gaps, [(1, 1), (3, 1)]);
        let last = LAST_OF_ROW;
        assert_eq!(own.places[0], [1, 1, 2 | last, 0, 3 | last, 1 | last]);
        assert_eq!(own.places[1], [0, 2, 1, 1, 1, 0]);
    }

    #[test]
    fn other_axes_are_sorted_and_fibres_are_numbered() {
        let own = Fibres::new(tensor().pattern(), &[2], &[0], RowsOf::All).unwrap().unwrap();
        assert_eq!(own.permutation, Some(vec![0, 5, 2, 3, 4, 1]));
        assert_eq!((own.count, own.gaps.len()), (3, 0));
        let own = Fibres::new(tensor().pattern(), &[0, 1], &[2], RowsOf::Stored).unwrap().unwrap();
        assert_eq!(own.keys, [1, 2, 8, 11, 17]);
        assert_eq!((own.count, own.rows), (5, None));
    }

    #[test]
    fn padding_is_left_out() {
        let matrix: AnySparse<f32> = {
            let coords = vec![vec![0, 0, 1], vec![0, 3, 2]];
            let pattern = CooPattern::new(vec![2, 4], coords).unwrap();
            Coo::new(pattern, vec![1.0; 3]).unwrap().into()
        };
        let format = Format::GroupCoo { axis: 0, group: Some(2) };
        let grouped = matrix.convert(format).unwrap();
        let own = Fibres::new(grouped.pattern(), &[0], &[1], RowsOf::All).unwrap().unwrap();
        assert_eq!(own.permutation, Some(vec![0, 1, 2]));
        assert_eq!((own.slots, own.entries()), (4, 3));
    }

    #[test]
    fn every_entry_is_in_exactly_one_item() {
        let lens = [3u32, 400, 1, 1, 90, 17, 1000];
        let coords: Vec<u32> = (0u32..).zip(lens).flat_map(|(r, n)| vec![r; n as usize]).collect();
        let columns: Vec<u32> = lens.iter().flat_map(|&n| 0..n).collect();
        let count = coords.len();
        let pattern = CooPattern::new(vec![7, 1000], vec![coords, columns]).unwrap();
        let a: AnySparse<f32> = Coo::new(pattern, vec![1.0; count]).unwrap().into();
        let own = Fibres::new(a.pattern(), &[0], &[1], RowsOf::All).unwrap().unwrap();
        for (weight, limit) in [(16, 32), (64, 128), (5000, 9000)] {
            let list = own.items(weight, limit, true);
            let mut seen = vec![0; count];
            for item in &list.items {
                let range = item.start as usize..(item.start + item.len) as usize;
                seen[range].iter_mut().for_each(|s| *s += 1);
                let (start, len) = own.runs.rows[item.row as usize];
                assert_eq!(item.slot != BUNDLE, len > limit, "{item:?}");
                assert!(item.start >= start);
            }
            assert!(seen.iter().all(|&s| s == 1), "weight {weight}");
            let cut = lens.iter().filter(|&&len| len > limit).count();
            assert_eq!(list.counters as usize, cut);
        }
    }
}
