//! Sparse to dense and back.

use super::tasks::csr_of_entries;
use crate::parallel;
use crate::{
    Coo, CooPattern, Csr, Dense, Element, FormatError, Sparse, allocate, check, convert::matrix,
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
        let at = coords.iter().zip(shape).fold(0, |at, (c, &n)| at * n + c[p] as usize);
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
    check::matrix(rows, cols)?;
    let held = size_of_val(dense.values()) as u64;
    allocate::extent("rows", rows as u128, 20, held)?;
    let entries = |row: usize| {
        let line = (0u32..).zip(&dense.values()[row * cols..][..cols]);
        line.filter(|&(_, &v)| v != T::ZERO).map(|(c, &v)| (c, v))
    };
    // SAFETY: columns taken in ascending order from rows of `cols` elements.
    unsafe { csr_of_entries((rows, cols), entries) }
}

/// The non-zero elements of a dense tensor of any order from 1.
///
/// # Errors
/// If the tensor is a scalar, or an extent or the number of non-zeros does not fit u32; [`FormatError::Memory`] if
/// there is no memory.
pub fn dense_to_coo<T: Element>(dense: &Dense<T>) -> Result<Coo<T>, FormatError> {
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
