//! Contents of a file: a sparse matrix in the format closest to the file, or a dense array.

use crate::convert::{dense_to_coo, starts_of};
use crate::error::*;
use crate::{AnySparse, AsSparse, Coo, Csr, CsrPattern, Dense, Element, Pattern, allocate, check};
use std::sync::Arc;

/// Matrix in the format of its file.
#[derive(Clone, Debug, PartialEq)]
pub enum Loaded<T> {
    /// Sparse matrix from Matrix Market coordinate (COO), `.smtx` (CSR), or `.npz` (CSR, CSC, COO, BSR, and DIA as
    /// COO).
    Sparse(AnySparse<T>),
    /// Dense array from Matrix Market array, `.npy`, or a tensor of `.safetensors`.
    Dense(Dense<T>),
}

impl<T: Element> Loaded<T> {
    /// Extents of the matrix.
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::Sparse(sparse) => sparse.shape(),
            Self::Dense(dense) => dense.shape(),
        }
    }

    /// Converts to a sparse matrix. The nonzeros of a dense matrix are converted to COO.
    ///
    /// # Errors
    /// Returns [`FormatError::Io`] if the dense array is not a matrix, and the errors of the COO constructor.
    pub fn into_sparse(self) -> Result<AnySparse<T>> {
        match self {
            Self::Sparse(sparse) => Ok(sparse),
            Self::Dense(dense) => nonzeros(&dense),
        }
    }

    /// Converts to CSR.
    ///
    /// # Errors
    /// Returns the errors of [`Loaded::into_sparse`] and of the conversion. Returns [`FormatError::Limit`] if nearly
    /// all rows are empty and their offsets exceed [`allocate::limits`]: a file of 70 bytes may have 2^32 - 1 rows.
    pub fn to_csr(&self) -> Result<Csr<T>> {
        match self {
            Self::Sparse(sparse) => sparse.to_csr(),
            Self::Dense(dense) => {
                bounded_extents(dense)?;
                nonzeros(dense)?.to_csr()
            }
        }
    }

    /// [`Loaded::to_csr`] that reuses the memory of the matrix if possible.
    pub fn into_csr(self) -> Result<Csr<T>> {
        match self {
            Self::Sparse(sparse) => match sparse {
                AnySparse::Csr(csr) => Ok(csr),
                AnySparse::Coo(coo) => coo_into_csr(coo),
                other => other.to_csr(),
            },
            Self::Dense(dense) => nonzeros_of(dense),
        }
    }

    /// Converts to a dense array.
    ///
    /// # Errors
    /// Returns [`FormatError::Limit`] if the elements need more memory than [`allocate::limits`] allows for the
    /// entries.
    pub fn into_dense(self) -> Result<Dense<T>> {
        match self {
            Self::Sparse(sparse) => {
                let product = |n: u128, &extent: &usize| n.saturating_mul(extent as u128);
                let elements = sparse.shape().iter().fold(1, product);
                let held = sparse.as_sparse().held();
                allocate::extent("dense elements", elements, size_of::<T>(), held)?;
                sparse.to_dense()
            }
            Self::Dense(dense) => Ok(dense),
        }
    }
}

pub(super) fn coo_into_csr<T: Element>(coo: Coo<T>) -> Result<Csr<T>> {
    let (pattern, values) = coo.into_parts();
    let &[rows, cols] = pattern.shape() else {
        return AnySparse::Coo(Coo::new(pattern, values)?).to_csr();
    };
    let held = allocate::bytes_of(&pattern.arrays()) + size_of_val(&values[..]) as u64;
    allocate::extent("rows", rows as u128, 4, held)?;
    let offsets = starts_of(pattern.coords()[0].iter().copied(), rows)?;
    // The pattern of a loaded matrix has no other owner, so it is not copied.
    let mut coords = Arc::unwrap_or_clone(pattern).into_coords();
    let columns = coords.pop().unwrap_or_default();
    drop(coords);
    Csr::new(CsrPattern::new(rows, cols, offsets, columns)?, values)
}

/// Rows and columns of a dense array, or an error if it is not a matrix.
fn extents<T: Element>(dense: &Dense<T>) -> Result<(usize, usize)> {
    let &[rows, cols] = dense.shape() else {
        let reason = format!("a matrix expected, an array of order {} found", dense.shape().len());
        return Err(FormatError::Io {
            path: "dense array".to_owned(),
            line: None,
            member: None,
            kind: std::io::ErrorKind::InvalidInput,
            reason,
        });
    };
    check::matrix(rows, cols)?;
    Ok((rows, cols))
}

/// Rows and columns of a matrix whose row offsets fit the memory limit for its elements. An empty array may have any
/// number of rows.
fn bounded_extents<T: Element>(dense: &Dense<T>) -> Result<(usize, usize)> {
    let (rows, cols) = extents(dense)?;
    let held = size_of_val(dense.values()) as u64;
    allocate::extent("rows", rows as u128, 4, held)?;
    Ok((rows, cols))
}

/// Converts the nonzeros of a matrix to CSR. The values are compacted in place.
fn nonzeros_of<T: Element>(dense: Dense<T>) -> Result<Csr<T>> {
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

fn nonzeros<T: Element>(dense: &Dense<T>) -> Result<AnySparse<T>> {
    extents(dense)?;
    Ok(dense_to_coo(dense)?.into())
}
