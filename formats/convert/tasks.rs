//! Division of rows, and of the arrays that belong to them, into tasks of about equal work.

use std::ops::Range;

use crate::error::*;
use crate::parallel;
use crate::{Csr, CsrPattern, Element, Sparse, allocate, check};

/// Tasks per thread: enough to balance rows of unequal cost, few enough for cheap scratch memory per task.
const PER_THREAD: usize = 8;

/// Minimum number of entries per task.
pub(super) const LEAST: usize = 1 << 14;

/// Divides rows into consecutive ranges with about equal work. `at(r)` is the number of entries before row `r`.
pub(crate) fn row_tasks(rows: usize, at: impl Fn(usize) -> usize) -> Vec<Range<usize>> {
    // A row without entries has a cost too.
    let work = |r: usize| at(r) + r;
    let tasks = (work(rows) / LEAST).clamp(1, PER_THREAD * rayon::current_num_threads());
    let mut start = 0;
    let mut ranges = Vec::with_capacity(tasks);
    for t in 1..=tasks {
        let goal = (work(rows) as u128 * t as u128 / tasks as u128) as usize;
        let (mut low, mut high) = (start, rows);
        while low < high {
            let middle = (low + high) / 2;
            if work(middle) < goal { low = middle + 1 } else { high = middle }
        }
        let end = if t == tasks { rows } else { low };
        if end > start || rows == 0 {
            ranges.push(start..end);
        }
        start = end;
    }
    ranges
}

/// Divides the slice of all rows into the slices of the tasks. `at(r)` is the start of row `r`.
pub(super) fn cut<'a, T>(
    mut slice: &'a mut [T],
    tasks: &[Range<usize>],
    at: impl Fn(usize) -> usize,
) -> Vec<&'a mut [T]> {
    let mut parts = Vec::with_capacity(tasks.len());
    for task in tasks {
        let (part, rest) = slice.split_at_mut(at(task.end) - at(task.start));
        parts.push(part);
        slice = rest;
    }
    parts
}

/// Prefix sums of the counts, starting at 0: one more than counts.
pub(crate) fn prefix_sum(
    what: &'static str,
    counts: impl ExactSizeIterator<Item = usize>,
) -> Result<Vec<u32>> {
    let mut sums = check::reserved("offsets", counts.len() + 1)?;
    let mut sum = 0u128;
    sums.push(0);
    for count in counts {
        sum += count as u128;
        // A wrapped sum is never used: the check below returns an error.
        sums.push(sum as u32);
    }
    check::fits(what, sum)?;
    Ok(sums)
}

/// Builds an array of `rows` rows. Row `row` starts at `at(row)` and is written by `fill`.
pub(super) fn filled_by_rows<U: bytemuck::Zeroable + Send>(
    what: &'static str,
    rows: usize,
    at: impl Fn(usize) -> usize + Sync,
    fill: impl Fn(usize, &mut [U]) + Sync,
) -> Result<Vec<U>> {
    let mut all = check::zeroed(what, at(rows))?;
    let tasks = row_tasks(rows, &at);
    let parts = cut(&mut all, &tasks, &at);
    parallel::each_of(parts, &|own, part| {
        let task = &tasks[own];
        let start = at(task.start);
        for row in task.clone() {
            fill(row, &mut part[at(row) - start..at(row + 1) - start]);
        }
    });
    Ok(all)
}

/// Copies rows of entries to new offsets `at(row)`, and fills the slots after each row with `pad`.
pub(super) fn spread<'e, U: bytemuck::Pod + Send + Sync>(
    what: &'static str,
    rows: usize,
    at: impl Fn(usize) -> usize + Sync,
    row: impl Fn(usize) -> &'e [U] + Sync,
    pad: U,
) -> Result<Vec<U>> {
    filled_by_rows(what, rows, at, |r, run| {
        let row = row(r);
        let (filled, rest) = run.split_at_mut(row.len());
        filled.copy_from_slice(row);
        rest.fill(pad);
    })
}

/// Builds a CSR matrix from the entries (column and value) of each row. `entries` is called twice per row: to count and
/// to write.
///
/// # Safety
/// The columns of a row are in bounds and strictly ascending, and equal in both calls.
pub(super) unsafe fn csr_of_entries<T: Element, E: Iterator<Item = (u32, T)>>(
    (rows, cols): (usize, usize),
    entries: impl Fn(usize) -> E + Sync,
) -> Result<Csr<T>> {
    let counts = allocate::each("counts of rows", rows, &|row| entries(row).count())?;
    let offsets = prefix_sum("entries", counts.into_iter())?;
    // SAFETY: guaranteed by the caller.
    unsafe {
        csr_by_rows((rows, cols), offsets, |row, columns, values| {
            let places = columns.iter_mut().zip(values);
            places.zip(entries(row)).for_each(|((c, v), entry)| (*c, *v) = entry);
        })
    }
}

/// Builds a CSR matrix whose rows start at `offsets`. `fill` writes the columns and values of each row.
///
/// # Safety
/// The columns of a row are in bounds and strictly ascending.
pub(super) unsafe fn csr_by_rows<T: Element>(
    (rows, cols): (usize, usize),
    offsets: Vec<u32>,
    fill: impl Fn(usize, &mut [u32], &mut [T]) + Sync,
) -> Result<Csr<T>> {
    let at = |row: usize| offsets[row] as usize;
    let mut columns = check::zeroed("columns", at(rows))?;
    let mut values = check::zeroed("values", at(rows))?;
    let tasks = row_tasks(rows, at);
    let parts = cut(&mut columns, &tasks, at).into_iter();
    let parts = parts.zip(cut(&mut values, &tasks, at)).collect();
    parallel::each_of(parts, &|own, (columns, values): (&mut [u32], &mut [T])| {
        let task = &tasks[own];
        for row in task.clone() {
            let slots = at(row) - at(task.start)..at(row + 1) - at(task.start);
            fill(row, &mut columns[slots.clone()], &mut values[slots]);
        }
    });
    // SAFETY: guaranteed by the caller.
    let pattern = unsafe { CsrPattern::new_unchecked(rows, cols, offsets, columns) };
    Sparse::new(pattern, values)
}
