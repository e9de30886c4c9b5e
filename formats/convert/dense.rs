//! Conversions of sparse to dense tensors, and back.

use super::tasks::csr_of_entries;
use crate::error::*;
use crate::parallel;
use crate::{Coo, CooPattern, Csr, Dense, Element, Sparse, allocate, check, convert::matrix};

/// Converts CSR to a dense matrix.
///
/// # Errors
/// Returns [`FormatError::Overflow`] or [`FormatError::Memory`] if the dense tensor cannot be allocated.
pub fn csr_to_dense<T: Element>(csr: &Csr<T>) -> Result<Dense<T>> {
    let p = csr.pattern();
    let mut dense = Dense::zeros([p.rows(), p.cols()])?;
    parallel::chunks(dense.values_mut(), p.cols().max(1), &|r, line: &mut [T]| {
        for e in p.row(r) {
            line[p.columns()[e] as usize] = csr.values()[e];
        }
    });
    Ok(dense)
}

/// Converts COO of any order to a dense tensor.
///
/// # Errors
/// Returns [`FormatError::Overflow`] or [`FormatError::Memory`] if the dense tensor cannot be allocated.
pub fn coo_to_dense<T: Element>(coo: &Coo<T>) -> Result<Dense<T>> {
    let mut dense = Dense::zeros(coo.shape())?;
    let (shape, coords) = (coo.shape(), coo.pattern().coords());
    for (p, &v) in coo.values().iter().enumerate() {
        let at = coords.iter().zip(shape).fold(0, |at, (c, &n)| at * n + c[p] as usize);
        dense.values_mut()[at] = v;
    }
    Ok(dense)
}

/// Converts the nonzeros of a dense matrix to CSR.
///
/// # Errors
/// Returns an error if the tensor is not a matrix, or the number of nonzeros exceeds u32.
pub fn dense_to_csr<T: Element>(dense: &Dense<T>) -> Result<Csr<T>> {
    let (rows, cols) = matrix(dense.shape())?;
    check::matrix(rows, cols)?;
    let held = size_of_val(dense.values()) as u64;
    allocate::extent("rows", rows as u128, 20, held)?;
    let entries = |row: usize| {
        let line = (0u32..).zip(&dense.values()[row * cols..][..cols]);
        line.filter(|&(_, &v)| v != T::ZERO).map(|(c, &v)| (c, v))
    };
    // SAFETY: columns are in ascending order and come from rows of `cols` elements.
    unsafe { csr_of_entries((rows, cols), entries) }
}

/// Converts the nonzeros of a dense tensor of order 1 or higher to COO.
///
/// # Errors
/// Returns an error if the tensor is a scalar, or an extent or the number of nonzeros exceeds u32. Returns
/// [`FormatError::Memory`] if allocation fails.
pub fn dense_to_coo<T: Element>(dense: &Dense<T>) -> Result<Coo<T>> {
    let (shape, strides) = (dense.shape(), dense.strides());
    let filled = || {
        let places = dense.values().iter().enumerate();
        places.filter(|(_, value)| **value != T::ZERO)
    };
    let count = filled().count();
    check::fits("entries", count as u128)?;
    let room = |_: &usize| check::reserved("coordinates", count);
    let mut coords: Vec<Vec<u32>> = shape.iter().map(room).collect::<Result<_, _>>()?;
    let mut values = check::reserved("values", count)?;
    for (at, value) in filled() {
        for ((axis, n), stride) in coords.iter_mut().zip(shape).zip(&strides) {
            axis.push((at / stride % n) as u32);
        }
        values.push(*value);
    }
    Sparse::new(CooPattern::new(shape.to_vec(), coords)?, values)
}
