//! What a file held: a sparse matrix in the format nearest to the file, or a dense one.

use super::entries::coo_from_entries;
use crate::{AnySparse, Csr, Dense, Element, FormatError, check};

/// A matrix as its file had it.
#[derive(Clone, Debug, PartialEq)]
pub enum Loaded<T> {
    /// Matrix Market coordinate (COO), `.smtx` (CSR), `.npz` (CSR, CSC, COO, BSR).
    Sparse(AnySparse<T>),
    /// Matrix Market array, `.npy`.
    Dense(Dense<T>),
}

impl<T: Element> Loaded<T> {
    /// The extents.
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::Sparse(sparse) => sparse.shape(),
            Self::Dense(dense) => dense.shape(),
        }
    }

    /// The sparse matrix; of a dense one, its nonzeros in COO.
    ///
    /// # Errors
    /// [`FormatError::Io`] when the dense array is not a matrix; what the COO constructor refuses.
    pub fn into_sparse(self) -> Result<AnySparse<T>, FormatError> {
        match self {
            Self::Sparse(sparse) => Ok(sparse),
            Self::Dense(dense) => nonzeros(&dense),
        }
    }

    /// The matrix as CSR.
    ///
    /// # Errors
    /// As [`Loaded::into_sparse`], and what the conversion refuses.
    pub fn to_csr(&self) -> Result<Csr<T>, FormatError> {
        match self {
            Self::Sparse(sparse) => sparse.to_csr(),
            Self::Dense(dense) => nonzeros(dense)?.to_csr(),
        }
    }

    /// The matrix as a dense array.
    ///
    /// # Errors
    /// [`FormatError::Overflow`] when rows x columns does not fit the memory's addresses.
    pub fn into_dense(self) -> Result<Dense<T>, FormatError> {
        match self {
            Self::Sparse(sparse) => sparse.to_dense(),
            Self::Dense(dense) => Ok(dense),
        }
    }
}

fn nonzeros<T: Element>(dense: &Dense<T>) -> Result<AnySparse<T>, FormatError> {
    let &[rows, cols] = dense.shape() else {
        let reason = format!(
            "a matrix expected, an array of order {} found",
            dense.shape().len()
        );
        return Err(FormatError::Io {
            path: "dense array".to_owned(),
            line: None,
            member: None,
            reason,
        });
    };
    check::fits("rows", rows as u128)?;
    check::fits("columns", cols as u128)?;
    let entries = dense
        .values()
        .iter()
        .enumerate()
        .filter(|(_, value)| **value != T::ZERO);
    let keyed = entries
        .map(|(at, value)| (((at / cols) as u64) << 32 | (at % cols) as u64, *value))
        .collect();
    Ok(AnySparse::Coo(coo_from_entries(rows, cols, keyed, false)?))
}
