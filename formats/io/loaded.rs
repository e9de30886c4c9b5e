//! What a file held: a sparse matrix in the format nearest to the file, or a dense one.

use crate::convert::{dense_to_coo, starts_of};
use crate::{AnySparse, Coo, Csr, CsrPattern, Dense, Element, FormatError, Pattern, check};
use std::sync::Arc;

/// A matrix as its file had it.
#[derive(Clone, Debug, PartialEq)]
pub enum Loaded<T> {
    /// Matrix Market coordinate (COO), `.smtx` (CSR), `.npz` (CSR, CSC, COO, BSR).
    Sparse(AnySparse<T>),
    /// Matrix Market array, `.npy`, a tensor of `.safetensors`.
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
    /// As [`Loaded::into_sparse`], and what the conversion refuses. [`FormatError::Overflow`] where nearly all rows are
    /// empty and there are so many that their offsets alone take over 64 MB and 64 bytes for each entry (of a dense
    /// array each element): a file of 70 bytes may have 2^32 - 1 rows. `into_sparse()?.to_csr()` converts it all the
    /// same.
    pub fn to_csr(&self) -> Result<Csr<T>, FormatError> {
        match self {
            Self::Sparse(sparse) => {
                offsets_in_proportion(sparse.shape()[0], sparse.nnz())?;
                sparse.to_csr()
            }
            Self::Dense(dense) => {
                bounded_extents(dense)?;
                nonzeros(dense)?.to_csr()
            }
        }
    }

    /// [`Loaded::to_csr`] that takes the memory of the matrix over where it can.
    ///
    /// # Errors
    /// As [`Loaded::to_csr`].
    pub fn into_csr(self) -> Result<Csr<T>, FormatError> {
        match self {
            Self::Sparse(sparse) => {
                offsets_in_proportion(sparse.shape()[0], sparse.nnz())?;
                match sparse {
                    AnySparse::Csr(csr) => Ok(csr),
                    AnySparse::Coo(coo) => coo_into_csr(coo),
                    other => other.to_csr(),
                }
            }
            Self::Dense(dense) => nonzeros_of(dense),
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

/// Entries that a sparse matrix needs for each so many bytes of row offsets.
fn offsets_in_proportion(rows: usize, entries: usize) -> Result<(), FormatError> {
    let (value, limit) = (4 * (rows as u128 + 1), 64_000_000 + 64 * entries as u128);
    if value > limit {
        let what = "bytes of row offsets";
        return Err(FormatError::Overflow { what, value, limit });
    }
    Ok(())
}

pub(super) fn coo_into_csr<T: Element>(coo: Coo<T>) -> Result<Csr<T>, FormatError> {
    let (pattern, values) = coo.into_parts();
    let &[rows, cols] = pattern.shape() else {
        return AnySparse::Coo(Coo::new(pattern, values)?).to_csr();
    };
    let offsets = starts_of(pattern.coords()[0].iter().copied(), rows)?;
    // The loader's pattern has no other owner, and is not copied.
    let mut coords = Arc::unwrap_or_clone(pattern).into_coords();
    let columns = coords.pop().unwrap_or_default();
    drop(coords);
    Csr::new(CsrPattern::new(rows, cols, offsets, columns)?, values)
}

/// Rows and columns of an array that is a matrix.
fn extents<T: Element>(dense: &Dense<T>) -> Result<(usize, usize), FormatError> {
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
    Ok((rows, cols))
}

/// The extents where the offsets of the rows are in proportion to the elements: an empty array may have any number of
/// rows.
fn bounded_extents<T: Element>(dense: &Dense<T>) -> Result<(usize, usize), FormatError> {
    let (rows, cols) = extents(dense)?;
    offsets_in_proportion(rows, dense.len())?;
    Ok((rows, cols))
}

/// Its nonzeros: their values are moved together where they are.
fn nonzeros_of<T: Element>(dense: Dense<T>) -> Result<Csr<T>, FormatError> {
    let (rows, cols) = bounded_extents(&dense)?;
    let mut values = dense.into_values();
    let count = values.iter().filter(|value| **value != T::ZERO).count();
    check::fits("entries", count as u128)?;
    let mut columns = check::reserved("columns", count)?;
    let places = values.iter().enumerate();
    let places = || places.clone().filter(|(_, value)| **value != T::ZERO);
    columns.extend(places().map(|(at, _)| (at % cols) as u32));
    let offsets = starts_of(places().map(|(at, _)| (at / cols) as u32), rows)?;
    values.retain(|value| *value != T::ZERO);
    Csr::new(CsrPattern::new(rows, cols, offsets, columns)?, values)
}

fn nonzeros<T: Element>(dense: &Dense<T>) -> Result<AnySparse<T>, FormatError> {
    extents(dense)?;
    Ok(dense_to_coo(dense)?.into())
}
