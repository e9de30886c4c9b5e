//! Conversions between CSR or CSC and the matrices of sprs.

use ::sprs::{CsMatBase, CsMatI, SpIndex};

use crate::error::*;
use crate::{AnySparse, Csc, CscPattern, Csr, CsrPattern, Element, check};

/// Converts indices of any sprs index type to u32.
fn narrow<I: SpIndex>(what: &'static str, indices: &[I]) -> Result<Vec<u32>> {
    let one = |i: &I| check::fits(what, i.index() as u128).map(|n| n as u32);
    indices.iter().map(one).collect()
}

/// Converts a u32 array to an sprs index type.
fn widen<I: SpIndex>(indices: &[u32]) -> Result<Vec<I>> {
    let one = |&i: &u32| {
        I::try_from_usize(i as usize).ok_or_else(|| FormatError::Overflow {
            what: "index",
            value: i.into(),
            limit: I::max_value().index() as u128,
        })
    };
    indices.iter().map(one).collect()
}

impl<T, I, P, X, D> TryFrom<&CsMatBase<T, I, P, X, D>> for AnySparse<T>
where
    T: Element,
    I: SpIndex,
    P: std::ops::Deref<Target = [I]>,
    X: std::ops::Deref<Target = [I]>,
    D: std::ops::Deref<Target = [T]>,
{
    type Error = FormatError;

    /// Converts to CSR or CSC, depending on how the matrix is stored.
    fn try_from(matrix: &CsMatBase<T, I, P, X, D>) -> Result<Self> {
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let offsets = narrow("entries", &matrix.proper_indptr())?;
        let indices = narrow("index", matrix.indices())?;
        let values = matrix.data().to_vec();
        if matrix.is_csr() {
            Ok(Csr::new(CsrPattern::new(rows, cols, offsets, indices)?, values)?.into())
        } else {
            Ok(Csc::new(CscPattern::new(rows, cols, offsets, indices)?, values)?.into())
        }
    }
}

impl<T, I, P, X, D> TryFrom<&CsMatBase<T, I, P, X, D>> for Csr<T>
where
    T: Element,
    I: SpIndex,
    P: std::ops::Deref<Target = [I]>,
    X: std::ops::Deref<Target = [I]>,
    D: std::ops::Deref<Target = [T]>,
{
    type Error = FormatError;

    /// Converts to CSR, also from a matrix that is stored by columns.
    fn try_from(matrix: &CsMatBase<T, I, P, X, D>) -> Result<Self> {
        match AnySparse::try_from(matrix)? {
            AnySparse::Csr(csr) => Ok(csr),
            other => other.to_csr(),
        }
    }
}

fn refused(reason: impl std::fmt::Display) -> FormatError {
    FormatError::Unsupported { what: "sprs matrix".into(), reason: reason.to_string() }
}

impl<T: Element, I: SpIndex> TryFrom<&Csr<T>> for CsMatI<T, I> {
    type Error = FormatError;

    fn try_from(csr: &Csr<T>) -> Result<Self> {
        let p = csr.pattern();
        let (offsets, columns) = (widen(p.offsets())?, widen(p.columns())?);
        CsMatI::try_new((p.rows(), p.cols()), offsets, columns, csr.values().to_vec())
            .map_err(|(.., error)| refused(error))
    }
}

impl<T: Element, I: SpIndex> TryFrom<&Csc<T>> for CsMatI<T, I> {
    type Error = FormatError;

    fn try_from(csc: &Csc<T>) -> Result<Self> {
        let p = csc.pattern();
        let (offsets, rows) = (widen(p.offsets())?, widen(p.rows_idx())?);
        CsMatI::try_new_csc((p.rows(), p.cols()), offsets, rows, csc.values().to_vec())
            .map_err(|(.., error)| refused(error))
    }
}
