//! Sparse to dense and back.

use super::tasks::prefix_sum;
use crate::parallel;
use crate::{
    Coo, CooPattern, Csr, CsrPattern, Dense, Element, FormatError, Sparse, check, convert::matrix,
};

/// CSR to dense.
///
/// # Errors
/// [`FormatError::Overflow`] or [`FormatError::Memory`] if the dense tensor cannot be had.
pub fn csr_to_dense<T: Element>(csr: &Csr<T>) -> Result<Dense<T>, FormatError> {
    let p = csr.pattern();
    let mut dense = Dense::zeros([p.rows(), p.cols()])?;
    parallel::chunks(dense.values_mut(), p.cols().max(1), &|r, line: &mut [T]| {
        for e in p.row(r) {
            line[p.columns()[e] as usize] = csr.values()[e];
        }
    });
    Ok(dense)
}

/// COO of any order to dense.
///
/// # Errors
/// [`FormatError::Overflow`] or [`FormatError::Memory`] if the dense tensor cannot be had.
pub fn coo_to_dense<T: Element>(coo: &Coo<T>) -> Result<Dense<T>, FormatError> {
    let mut dense = Dense::zeros(coo.shape())?;
    let (shape, coords) = (coo.shape(), coo.pattern().coords());
    for (p, &v) in coo.values().iter().enumerate() {
        let at = coords
            .iter()
            .zip(shape)
            .fold(0, |at, (c, &n)| at * n + c[p] as usize);
        dense.values_mut()[at] = v;
    }
    Ok(dense)
}

/// The non-zero elements of a dense matrix.
///
/// # Errors
/// If the tensor is not a matrix, or its non-zeros do not fit u32.
pub fn dense_to_csr<T: Element>(dense: &Dense<T>) -> Result<Csr<T>, FormatError> {
    let (rows, cols) = matrix(dense.shape())?;
    check::extent("rows", rows)?;
    check::extent("columns", cols)?;
    let line = |r: usize| &dense.values()[r * cols..(r + 1) * cols];
    let count = |r| line(r).iter().filter(|&&v| v != T::ZERO).count();
    let counts: Vec<usize> = parallel::collect(rows, 64, &count);
    let offsets = prefix_sum("entries", counts.into_iter())?;
    let filled = |r| line(r).iter().enumerate().filter(|&(_, &v)| v != T::ZERO);
    let columns = parallel::gathered(rows, 64, &|rows, found| {
        found.extend(rows.flat_map(|r| filled(r).map(|(c, _)| c as u32)));
    });
    let values = parallel::gathered(rows, 64, &|rows, found| {
        found.extend(rows.flat_map(|r| filled(r).map(|(_, &v)| v)));
    });
    // SAFETY: columns taken in ascending order from rows of `cols` elements.
    let pattern = unsafe { CsrPattern::new_unchecked(rows, cols, offsets, columns) };
    Sparse::new(pattern, values)
}

/// The non-zero elements of a dense tensor of any order from 1.
///
/// # Errors
/// If the tensor is a scalar, or an extent or the number of non-zeros does not fit u32.
pub fn dense_to_coo<T: Element>(dense: &Dense<T>) -> Result<Coo<T>, FormatError> {
    let filled = dense
        .values()
        .iter()
        .enumerate()
        .filter(|&(_, &v)| v != T::ZERO);
    let (positions, values): (Vec<usize>, Vec<T>) = filled.unzip();
    let axes = dense.shape().iter().zip(dense.strides());
    let coordinate = |(&n, stride): (&usize, usize)| {
        positions.iter().map(|&p| (p / stride % n) as u32).collect()
    };
    let coords = axes.map(coordinate).collect();
    Sparse::new(CooPattern::new(dense.shape().to_vec(), coords)?, values)
}
