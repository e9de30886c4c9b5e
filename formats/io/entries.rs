//! Conversion of entries in any order to sorted COO. The key of an entry is `row << 32 | column`, so one integer
//! comparison orders two entries. Duplicate entries are summed in file order, in the accumulator, and rounded once.

use crate::error::*;
use crate::parallel;
use crate::{Coo, CooPattern, Element, check};
use rayon::prelude::*;

/// Sorts `entries` and sums duplicates. With `merge`, the first of several duplicates is kept instead (pattern files,
/// where all values are one). Sorting uses at most `room` bytes if a method with less memory exists.
pub(super) fn coo_from_entries<T: Element>(
    rows: usize,
    cols: usize,
    mut entries: Vec<(u64, T)>,
    merge: bool,
    room: u64,
) -> Result<Coo<T>> {
    check::fits("entries", entries.len() as u128)?;
    let ascending = entries.windows(2).all(|pair| pair[0].0 < pair[1].0);
    if !ascending {
        entries = sorted(entries, rows, merge, room)?;
        add_up(&mut entries, merge);
    }
    const LEAST: usize = 1 << 14;
    let count = entries.len();
    let row_index = parallel::collect(count, LEAST, &|at| (entries[at].0 >> 32) as u32);
    let col_index = parallel::collect(count, LEAST, &|at| entries[at].0 as u32);
    let values = parallel::collect(count, LEAST, &|at| entries[at].1);
    Coo::new(CooPattern::new(vec![rows, cols], vec![row_index, col_index])?, values)
}

/// Sorts entries stably, or unstably if duplicates have equal values (`same`). If there are fewer rows than
/// entries, one counting pass by row is made. The remaining rows are short, and mostly in order already, because files
/// are mostly written by columns.
fn sorted<T: Element>(
    mut entries: Vec<(u64, T)>,
    rows: usize,
    same: bool,
    room: u64,
) -> Result<Vec<(u64, T)>> {
    let copy = (entries.len() * size_of::<(u64, T)>()) as u64;
    let counted = rows <= entries.len() && copy + 4 * (rows as u64 + 1) <= room;
    if !counted {
        if same {
            entries.par_sort_unstable_by_key(|entry| entry.0);
        } else {
            entries.par_sort_by_key(|entry| entry.0);
        }
        return Ok(entries);
    }
    let mut next: Vec<u32> = check::zeroed("row counts", rows + 1)?;
    for entry in &entries {
        next[(entry.0 >> 32) as usize + 1] += 1;
    }
    for row in 0..rows {
        next[row + 1] += next[row];
    }
    let mut placed = check::reserved("sorted entries", entries.len())?;
    placed.resize(entries.len(), (0, T::ZERO));
    for entry in entries {
        let slot = &mut next[(entry.0 >> 32) as usize];
        placed[*slot as usize] = entry;
        *slot += 1;
    }
    // `next[row]` is now the end of the row.
    let mut rest = placed.as_mut_slice();
    let mut runs = Vec::new();
    let mut start = 0;
    for end in next[..rows].iter().map(|end| *end as usize) {
        let (run, tail) = rest.split_at_mut(end - start);
        if !run.is_sorted_by_key(|entry| entry.0) {
            runs.push(run);
        }
        (rest, start) = (tail, end);
    }
    parallel::chunks(&mut runs, 64, &|_, runs| {
        let each = runs.iter_mut();
        each.for_each(|run| run.sort_by_key(|entry| entry.0));
    });
    Ok(placed)
}

/// Reduces consecutive entries of equal key to one entry.
fn add_up<T: Element>(entries: &mut Vec<(u64, T)>, merge: bool) {
    let mut kept = 0;
    let mut at = 0;
    while at < entries.len() {
        let (key, first) = entries[at];
        let mut end = at + 1;
        let mut sum = first.to_acc();
        while end < entries.len() && entries[end].0 == key {
            sum += entries[end].1.to_acc();
            end += 1;
        }
        let value = if merge || end == at + 1 { first } else { T::from_acc(sum) };
        entries[kept] = (key, value);
        kept += 1;
        at = end;
    }
    entries.truncate(kept);
}
