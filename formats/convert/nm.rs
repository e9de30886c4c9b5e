//! N:M from CSR and dense, exactly or by pruning, and back. Rows are independent: each is one task.

use super::tasks::csr_of_entries;
use super::{cost, dense_to_csr};
use crate::convert::matrix;
use crate::nm::{GROUP, KEPT, PADDING, WORD, words_per_row};
use crate::parallel;
use crate::{
    AsSparse, Csr, CsrPattern, Dense, Element, FormatError, Nm, NmPattern, PAD, Sparse, check,
};

/// The first group, in row order, that holds more of the entries picked by `counts` than 2:4 stores.
pub(crate) fn check_groups(
    csr: &CsrPattern,
    counts: impl Fn(usize) -> bool + Sync,
) -> Result<(), FormatError> {
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

/// Sets one group of a row from its entries, at most two, ascending. A slot without an entry takes the lowest free
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

/// An N:M matrix whose rows `fill(row, values, words)` writes, over slots that are all padding.
fn pack<T: Element>(
    (rows, cols): (usize, usize),
    held: u64,
    fill: impl Fn(usize, &mut [T], &mut [u32]) + Sync,
) -> Result<Nm<T>, FormatError> {
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
    // SAFETY: `put` stores ascending positions and nothing past the last group; the rest is padding.
    let pattern = unsafe { NmPattern::new_unchecked(rows, cols, meta) };
    Sparse::new(pattern, values)
}

/// CSR to 2:4, exactly. Stored zeros are dropped, as in block formats.
///
/// # Errors
/// [`FormatError::Group`] with the first row and group that hold more than 2 non-zeros among 4 columns; if the slots
/// do not fit u32, or there is no memory.
pub fn csr_to_nm<T: Element>(csr: &Csr<T>) -> Result<Nm<T>, FormatError> {
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

/// Dense to 2:4, exactly.
///
/// # Errors
/// As [`csr_to_nm`]; if the tensor is not a matrix.
pub fn dense_to_nm<T: Element>(dense: &Dense<T>) -> Result<Nm<T>, FormatError> {
    csr_to_nm(&dense_to_csr(dense)?)
}

/// Dense to 2:4 by magnitude: of every 4 neighbours in a row, counted from column 0, the 2 of largest magnitude stay
/// and the others are dropped (magnitude pruning; Mishra et al., arXiv 2104.08378, section 4). Between equals the
/// lower column stays; NaN counts as the largest.
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
/// If the tensor is not a matrix, the slots do not fit u32, or there is no memory.
pub fn prune_to_nm<T: Element>(dense: &Dense<T>) -> Result<Nm<T>, FormatError> {
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

/// The two largest of a group and how many there are, in the order of their columns.
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

/// The entries of a row: columns and values, without fill and padding.
fn entries<T: Element>(nm: &Nm<T>, row: usize) -> impl Iterator<Item = (u32, T)> {
    let p = nm.pattern();
    let line = &nm.values()[row * p.row_slots()..(row + 1) * p.row_slots()];
    let filled = line.iter().enumerate().filter(|&(_, &value)| value != T::ZERO);
    filled
        .map(move |(slot, &value)| (p.column(row, slot), value))
        .filter(|&(column, _)| column != PAD)
}

/// 2:4 to CSR. Zeros are fill and do not become entries.
///
/// # Errors
/// If there is no memory.
pub fn nm_to_csr<T: Element>(nm: &Nm<T>) -> Result<Csr<T>, FormatError> {
    cost::to_csr(nm.as_sparse())?;
    let p = nm.pattern();
    // SAFETY: groups follow each other and positions ascend in them; what is past the last column was left out.
    unsafe { csr_of_entries((p.rows(), p.cols()), |row| entries(nm, row)) }
}

/// 2:4 to dense.
///
/// # Errors
/// [`FormatError::Overflow`] or [`FormatError::Memory`] if the dense tensor cannot be had.
pub fn nm_to_dense<T: Element>(nm: &Nm<T>) -> Result<Dense<T>, FormatError> {
    let (rows, cols) = (nm.pattern().rows(), nm.pattern().cols());
    let mut dense = Dense::zeros([rows, cols])?;
    parallel::chunks(dense.values_mut(), cols.max(1), &|row, line: &mut [T]| {
        for (column, value) in entries(nm, row) {
            line[column as usize] = value;
        }
    });
    Ok(dense)
}
