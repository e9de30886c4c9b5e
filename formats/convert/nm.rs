//! Conversions of CSR and dense to N:M, exact or by pruning, and back. Rows are independent and are processed in
//! parallel.

use super::tasks::csr_of_entries;
use super::{cost, dense_to_csr};
use crate::convert::matrix;
use crate::error::*;
use crate::nm::{GROUP, KEPT, PADDING, WORD, words_per_row};
use crate::parallel;
use crate::{AsSparse, Csr, CsrPattern, Dense, Element, Nm, NmPattern, PAD, Sparse, check};

/// Returns an error for the first group, in row order, with more entries for which `counts` is true than 2:4 stores.
pub(crate) fn check_groups(csr: &CsrPattern, counts: impl Fn(usize) -> bool + Sync) -> Result<()> {
    let overfull = |row: usize| {
        let kept = csr.row(row).filter(|&e| counts(e));
        let groups: Vec<usize> = kept.map(|e| csr.columns()[e] as usize / GROUP).collect();
        let full = groups.chunk_by(|a, b| a == b).find(|g| g.len() > KEPT)?;
        Some(FormatError::Group {
            row,
            group: full[0],
            columns: (full[0] * GROUP, full[0] * GROUP + GROUP - 1),
            found: full.len(),
            kept: KEPT,
        })
    };
    let found = parallel::gathered(csr.rows(), 64, &|mut rows, found| {
        found.extend(rows.find_map(overfull));
    });
    found.into_iter().next().map_or(Ok(()), Err)
}

/// Writes one group of a row from its entries, at most two, ascending. A slot without entry gets the lowest free
/// position, so that equal matrices have equal words.
fn put<T: Element>(values: &mut [T], words: &mut [u32], group: usize, kept: &[(u32, T)]) {
    let [first, second] = match *kept {
        [] => return,
        [(0, value)] => [(0, value), (1, T::ZERO)],
        [entry] => [(0, T::ZERO), entry],
        [first, second, ..] => [first, second],
    };
    let slots = &mut values[group * KEPT..][..KEPT];
    slots.copy_from_slice(&[first.1, second.1]);
    let shift = group % (WORD / GROUP) * 4;
    let word = &mut words[group / (WORD / GROUP)];
    *word = *word & !(15 << shift) | (first.0 | second.0 << 2) << shift;
}

/// Builds an N:M matrix whose rows are written by `fill(row, values, words)`. All slots are padding before the call.
fn pack<T: Element>(
    (rows, cols): (usize, usize),
    held: u64,
    fill: impl Fn(usize, &mut [T], &mut [u32]) + Sync,
) -> Result<Nm<T>> {
    let words = words_per_row(rows, cols)?;
    let slots = words * (WORD / GROUP * KEPT);
    cost::slots::<T>(rows * slots, rows * words, held)?;
    let mut values = check::zeroed("values", rows * slots)?;
    let mut meta = check::zeroed("meta", rows * words)?;
    const ROWS: usize = 64;
    let lines = values.chunks_mut((slots * ROWS).max(1));
    let lines = lines.zip(meta.chunks_mut((words * ROWS).max(1))).collect();
    parallel::each_of(lines, &|at, (values, meta): (&mut [T], &mut [u32])| {
        meta.fill(PADDING);
        let lines = values.chunks_mut(slots.max(1)).zip(meta.chunks_mut(words.max(1)));
        for (row, (values, words)) in lines.enumerate() {
            fill(at * ROWS + row, values, words);
        }
    });
    // SAFETY: `put` stores ascending positions and writes nothing past the last group. All other slots are padding.
    let pattern = unsafe { NmPattern::new_unchecked(rows, cols, meta) };
    Sparse::new(pattern, values)
}

/// Converts CSR to 2:4 exactly. Stored zeros are dropped, as in block formats.
///
/// # Errors
/// Returns [`FormatError::Group`] with the first row and group that contain more than 2 nonzeros in 4 columns. Returns
/// an error if the number of slots exceeds u32, or allocation fails.
pub fn csr_to_nm<T: Element>(csr: &Csr<T>) -> Result<Nm<T>> {
    let (p, data) = (csr.pattern(), csr.values());
    check_groups(p, |e| data[e] != T::ZERO)?;
    pack((p.rows(), p.cols()), csr.held(), |row, values, words| {
        let kept: Vec<(u32, T)> =
            p.row(row).filter(|&e| data[e] != T::ZERO).map(|e| (p.columns()[e], data[e])).collect();
        for group in kept.chunk_by(|a, b| a.0 as usize / GROUP == b.0 as usize / GROUP) {
            let at = group[0].0 as usize / GROUP;
            let mut inside = [(0, T::ZERO); KEPT];
            for (slot, &(column, value)) in inside.iter_mut().zip(group) {
                *slot = (column % GROUP as u32, value);
            }
            put(values, words, at, &inside[..group.len().min(KEPT)]);
        }
    })
}

/// Converts a dense matrix to 2:4 exactly.
///
/// # Errors
/// Returns the errors of [`csr_to_nm`], and an error if the tensor is not a matrix.
pub fn dense_to_nm<T: Element>(dense: &Dense<T>) -> Result<Nm<T>> {
    csr_to_nm(&dense_to_csr(dense)?)
}

/// Prunes a dense matrix to 2:4 by magnitude. Of every 4 neighbors in a row, counted from column 0, the 2 with the
/// largest magnitudes are kept and the others are dropped (magnitude pruning; Mishra et al., arXiv 2104.08378, section
/// 4). Of equal magnitudes the lower column is kept. NaN has the largest magnitude.
///
/// ```
/// use einsparse_formats::{Dense, convert};
/// let dense = Dense::new([1, 4], vec![1.0f32, -3.0, 2.0, 2.0])?;
/// let pruned = convert::nm_to_dense(&convert::prune_to_nm(&dense)?)?;
/// assert_eq!(pruned.values(), [0.0, -3.0, 2.0, 0.0]);
/// # Ok::<(), einsparse_formats::FormatError>(())
/// ```
///
/// # Errors
/// Returns an error if the tensor is not a matrix, the number of slots exceeds u32, or allocation fails.
pub fn prune_to_nm<T: Element>(dense: &Dense<T>) -> Result<Nm<T>> {
    let (rows, cols) = matrix(dense.shape())?;
    let held = size_of_val(dense.values()) as u64;
    pack((rows, cols), held, |row, values, words| {
        let line = &dense.values()[row * cols..(row + 1) * cols];
        for (at, group) in line.chunks(GROUP).enumerate() {
            let (kept, count) = largest(group);
            put(values, words, at, &kept[..count]);
        }
    })
}

/// Two largest elements of a group in the order of their columns, and their number.
fn largest<T: Element>(group: &[T]) -> ([(u32, T); KEPT], usize) {
    // The magnitude of NaN is above infinity in the total order.
    let above = |a: T, b: T| a.to_f64().abs().total_cmp(&b.to_f64().abs()).is_gt();
    let mut kept = [(0, T::ZERO); KEPT];
    let mut count = 0;
    let mut taken = [false; GROUP];
    while count < KEPT.min(group.len()) {
        let free = (0..group.len()).filter(|&i| !taken[i]);
        let best = free.reduce(|best, i| if above(group[i], group[best]) { i } else { best });
        let Some(best) = best else { break };
        taken[best] = true;
        kept[count] = (best as u32, group[best]);
        count += 1;
    }
    kept[..count].sort_unstable_by_key(|&(place, _)| place);
    (kept, count)
}

/// Columns and values of the entries of a row, without fill and padding.
fn entries<T: Element>(nm: &Nm<T>, row: usize) -> impl Iterator<Item = (u32, T)> {
    let p = nm.pattern();
    let line = &nm.values()[row * p.row_slots()..(row + 1) * p.row_slots()];
    let filled = line.iter().enumerate().filter(|&(_, &value)| value != T::ZERO);
    filled
        .map(move |(slot, &value)| (p.column(row, slot), value))
        .filter(|&(column, _)| column != PAD)
}

/// Converts 2:4 to CSR. Zeros are fill and do not become entries.
///
/// # Errors
/// Returns an error if allocation fails.
pub fn nm_to_csr<T: Element>(nm: &Nm<T>) -> Result<Csr<T>> {
    cost::to_csr(nm.as_sparse())?;
    let p = nm.pattern();
    // SAFETY: groups are in order and positions ascend in each group. Slots past the last column were skipped.
    unsafe { csr_of_entries((p.rows(), p.cols()), |row| entries(nm, row)) }
}

/// Converts 2:4 to a dense matrix.
///
/// # Errors
/// Returns [`FormatError::Overflow`] or [`FormatError::Memory`] if the dense tensor cannot be allocated.
pub fn nm_to_dense<T: Element>(nm: &Nm<T>) -> Result<Dense<T>> {
    let (rows, cols) = (nm.pattern().rows(), nm.pattern().cols());
    let mut dense = Dense::zeros([rows, cols])?;
    parallel::chunks(dense.values_mut(), cols.max(1), &|row, line: &mut [T]| {
        for (column, value) in entries(nm, row) {
            line[column as usize] = value;
        }
    });
    Ok(dense)
}
