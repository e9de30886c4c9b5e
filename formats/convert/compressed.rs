//! Conversions between COO, CSR, CSC and ELL.

use super::tasks::{csr_by_rows, filled_by_rows, prefix_sum};
use super::{cost, matrix};
use crate::error::*;
use crate::parallel;
use crate::{
    AsSparse, Coo, CooPattern, Csc, CscPattern, Csr, CsrPattern, Element, Ell, EllPattern, PAD,
    Pattern, Sparse, allocate, check,
};

/// Converts COO of order 2 to CSR.
///
/// # Errors
/// Returns an error if the tensor is not a matrix, or allocation fails.
pub fn coo_to_csr<T: Element>(coo: &Coo<T>) -> Result<Csr<T>> {
    let (rows, cols) = matrix(coo.shape())?;
    cost::to_csr(coo.as_sparse())?;
    let [row_of, columns] = coo.pattern().coords() else {
        return Err(FormatError::Length { array: "coords", found: 0, expected: 2 });
    };
    let offsets = starts_of(row_of.iter().copied(), rows)?;
    // SAFETY: the entries are sorted by row, then column, and are distinct and inside the shape.
    let pattern = unsafe { CsrPattern::new_unchecked(rows, cols, offsets, columns.clone()) };
    Sparse::new(pattern, coo.values().to_vec())
}

/// Converts CSR to COO.
///
/// # Errors
/// Returns an error if allocation fails.
pub fn csr_to_coo<T: Element>(csr: &Csr<T>) -> Result<Coo<T>> {
    let p = csr.pattern();
    let at = |r: usize| p.offsets()[r] as usize;
    let row_of = filled_by_rows("coords[0]", p.rows(), at, |r, part| part.fill(r as u32))?;
    let coords = vec![row_of, p.columns().to_vec()];
    // SAFETY: rows ascend, and the columns of each row ascend.
    let pattern = unsafe { CooPattern::new_unchecked(p.shape().to_vec(), coords) };
    Sparse::new(pattern, csr.values().to_vec())
}

/// Start of each of `extent` rows if entries with these row indices are sorted by row.
pub(crate) fn starts_of(rows: impl Iterator<Item = u32>, extent: usize) -> Result<Vec<u32>> {
    let mut offsets: Vec<u32> = check::zeroed("offsets", extent + 1)?;
    rows.for_each(|row| offsets[row as usize + 1] += 1);
    let mut sum = 0;
    for offset in &mut offsets {
        sum += *offset;
        *offset = sum;
    }
    Ok(offsets)
}

/// Offsets, indices and values of the other major axis.
type Compressed<T> = (Vec<u32>, Vec<u32>, Vec<T>);

/// Converts from one compressed axis to the other by a counting sort. The sort is stable, so the new indices ascend.
fn transpose<T: Copy + bytemuck::Zeroable>(
    offsets: &[u32],
    minor: &[u32],
    values: &[T],
    extent: usize,
) -> Result<Compressed<T>> {
    let held = 4 * (offsets.len() + minor.len()) + size_of_val(values);
    allocate::extent("rows or columns", extent as u128, 8, held as u64)?;
    let starts = starts_of(minor.iter().copied(), extent)?;
    let mut next = allocate::collected("offsets", starts.iter().copied())?;
    let mut major = check::zeroed("indices", minor.len())?;
    let mut moved = check::zeroed("values", minor.len())?;
    for (r, w) in offsets.windows(2).enumerate() {
        for p in w[0] as usize..w[1] as usize {
            let to = &mut next[minor[p] as usize];
            major[*to as usize] = r as u32;
            moved[*to as usize] = values[p];
            *to += 1;
        }
    }
    Ok((starts, major, moved))
}

/// Converts CSR to CSC by a counting sort.
///
/// # Errors
/// Returns an error if allocation fails.
pub fn csr_to_csc<T: Element>(csr: &Csr<T>) -> Result<Csc<T>> {
    let p = csr.pattern();
    let (offsets, rows_idx, values) = transpose(p.offsets(), p.columns(), csr.values(), p.cols())?;
    // SAFETY: the arrays are a stable counting sort of valid entries in the order of their rows.
    let pattern = unsafe { CscPattern::new_unchecked(p.rows(), p.cols(), offsets, rows_idx) };
    Sparse::new(pattern, values)
}

/// Converts CSC to CSR by a counting sort.
///
/// # Errors
/// Returns an error if allocation fails.
pub fn csc_to_csr<T: Element>(csc: &Csc<T>) -> Result<Csr<T>> {
    let p = csc.pattern();
    let (offsets, columns, values) = transpose(p.offsets(), p.rows_idx(), csc.values(), p.rows())?;
    // SAFETY: the arrays are a stable counting sort of valid entries in the order of their columns.
    let pattern = unsafe { CsrPattern::new_unchecked(p.rows(), p.cols(), offsets, columns) };
    Sparse::new(pattern, values)
}

/// Returns the transposed matrix in CSR.
///
/// # Errors
/// Returns an error if allocation fails.
pub fn transpose_csr<T: Element>(csr: &Csr<T>) -> Result<Csr<T>> {
    let p = csr.pattern();
    let (offsets, columns, values) = transpose(p.offsets(), p.columns(), csr.values(), p.cols())?;
    // SAFETY: the same counting sort as in `csr_to_csc`, with exchanged extents.
    let pattern = unsafe { CsrPattern::new_unchecked(p.cols(), p.rows(), offsets, columns) };
    Sparse::new(pattern, values)
}

/// Returns the pattern of the transposed matrix.
pub(crate) fn transpose_pattern(p: &CsrPattern) -> Result<CsrPattern> {
    let nothing = vec![(); p.nnz()];
    let (offsets, columns, _) = transpose(p.offsets(), p.columns(), &nothing, p.cols())?;
    // SAFETY: the same counting sort as in `transpose_csr`.
    Ok(unsafe { CsrPattern::new_unchecked(p.cols(), p.rows(), offsets, columns) })
}

/// Converts CSR to ELL with the width of the longest row.
///
/// # Errors
/// Returns [`FormatError::Overflow`] if one long row causes too much padding, and an error if allocation fails.
pub fn csr_to_ell<T: Element>(csr: &Csr<T>) -> Result<Ell<T>> {
    let p = csr.pattern();
    let width = p.offsets().windows(2).map(|w| (w[1] - w[0]) as usize).max().unwrap_or(0);
    let slots = check::product("slots", &[p.rows(), width])?;
    cost::slots::<T>(slots, slots, csr.held())?;
    let mut columns = check::zeroed("columns", slots)?;
    let mut values = check::zeroed("values", slots)?;
    parallel::chunks(&mut columns, width.max(1), &|r, columns| {
        let row = p.row(r);
        columns[row.len()..].fill(PAD);
        columns[..row.len()].copy_from_slice(&p.columns()[row]);
    });
    parallel::chunks(&mut values, width.max(1), &|r, values: &mut [T]| {
        let row = p.row(r);
        values[..row.len()].copy_from_slice(&csr.values()[row]);
    });
    // SAFETY: each row is a valid row of the CSR, followed by padding.
    let pattern = unsafe { EllPattern::new_unchecked(p.rows(), p.cols(), width, columns) };
    Sparse::new(pattern, values)
}

/// Converts ELL to CSR.
///
/// # Errors
/// Returns an error if allocation fails.
pub fn ell_to_csr<T: Element>(ell: &Ell<T>) -> Result<Csr<T>> {
    cost::to_csr(ell.as_sparse())?;
    let p = ell.pattern();
    let width = p.width();
    let length = |r: usize| {
        let row = &p.columns()[r * width..(r + 1) * width];
        row.iter().rposition(|&c| c != PAD).map_or(0, |last| last + 1)
    };
    let offsets = prefix_sum("entries", (0..p.rows()).map(length))?;
    // SAFETY: each row is a valid row of the ELL without its padding.
    unsafe {
        csr_by_rows((p.rows(), p.cols()), offsets, |r, columns, values| {
            let from = r * width..r * width + columns.len();
            columns.copy_from_slice(&p.columns()[from.clone()]);
            values.copy_from_slice(&ell.values()[from]);
        })
    }
}
