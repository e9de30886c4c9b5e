//! A checked reordering of rows or columns, its inverse, and what it does to matrices.

use rayon::prelude::*;

use crate::convert::prefix_sum;
use crate::parallel;
use crate::{Csr, CsrPattern, Dense, Element, FormatError, Sparse, allocate, check};

/// A reordering of the places of one axis: place `i` of the new order holds what stood at place `order[i]`.
///
/// With P on the rows and Q on the columns of A and Q on the rows of B, the product of the permuted matrices is C with
/// P on its rows; P's inverse on the rows of that restores C:
///
/// ```
/// use einsparse_formats::{Csr, CsrPattern, Permutation};
/// // [ 1 0 ]
/// // [ 2 3 ]
/// let a = Csr::new(CsrPattern::new(2, 2, vec![0, 1, 3], vec![0, 0, 1])?, vec![1.0f32, 2.0, 3.0])?;
/// let swap = Permutation::new(vec![1, 0])?;
/// let swapped = swap.rows(&a)?;
/// assert_eq!(swapped.values(), [2.0, 3.0, 1.0]);
/// assert_eq!(swap.inverse().rows(&swapped)?, a);
/// # Ok::<(), einsparse_formats::FormatError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permutation {
    order: Vec<u32>,
}

impl Permutation {
    /// Checks and takes the order: for each new place the old one.
    ///
    /// # Errors
    /// If there are more places than fit u32, or one is named that is not there, or twice.
    pub fn new(order: Vec<u32>) -> Result<Self, FormatError> {
        check::extent("places", order.len())?;
        check::below("order", &order, order.len())?;
        let mut first: Vec<u32> = check::zeroed("places", order.len())?;
        for (at, &old) in order.iter().enumerate() {
            // 0 is "not seen": positions are kept from 1.
            if first[old as usize] != 0 {
                return Err(FormatError::Unsupported {
                    what: format!("order[{at}] = {old}"),
                    reason: format!("is order[{}] already", first[old as usize] - 1),
                });
            }
            first[old as usize] = at as u32 + 1;
        }
        Ok(Permutation { order })
    }

    /// Everything stays where it is.
    ///
    /// # Errors
    /// If there are more places than fit u32; [`FormatError::Memory`] if there is no memory.
    pub fn identity(len: usize) -> Result<Self, FormatError> {
        check::extent("places", len)?;
        Ok(Permutation { order: allocate::collected("places", 0..len as u32)? })
    }

    /// Takes an order that names each place once.
    pub(crate) fn of_places(order: Vec<u32>) -> Self {
        debug_assert!(Permutation::new(order.clone()).is_ok());
        Permutation { order }
    }

    /// For each new place the old one.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// Places.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there are no places.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Whether everything stays where it is.
    pub fn is_identity(&self) -> bool {
        self.order.iter().enumerate().all(|(i, &o)| i == o as usize)
    }

    /// The permutation that puts everything back: for each old place the new one.
    pub fn inverse(&self) -> Permutation {
        let mut order = vec![0; self.len()];
        for (new, &old) in self.order.iter().enumerate() {
            order[old as usize] = new as u32;
        }
        Permutation { order }
    }

    /// This one first, then `next`.
    ///
    /// # Errors
    /// [`FormatError::Length`] if the two are not of one length.
    pub fn then(&self, next: &Permutation) -> Result<Permutation, FormatError> {
        self.fits("order", next.len())?;
        let order = next.order.iter().map(|&p| self.order[p as usize]);
        Ok(Permutation { order: order.collect() })
    }

    /// A matrix with its rows in the new order.
    ///
    /// # Errors
    /// [`FormatError::Length`] unless there is a place for each row.
    pub fn rows<T: Element>(&self, csr: &Csr<T>) -> Result<Csr<T>, FormatError> {
        let pattern = self.pattern_rows(csr.pattern())?;
        let old = csr.pattern();
        let values = parallel::gathered(self.order.len(), 256, &|rows, found| {
            for &row in &self.order[rows] {
                found.extend_from_slice(&csr.values()[old.row(row as usize)]);
            }
        });
        Sparse::new(pattern, values)
    }

    /// A pattern with its rows in the new order.
    ///
    /// # Errors
    /// As [`Permutation::rows`].
    pub fn pattern_rows(&self, csr: &CsrPattern) -> Result<CsrPattern, FormatError> {
        self.fits("rows", csr.rows())?;
        let lengths = self.order.iter().map(|&row| csr.row(row as usize).len());
        let offsets = prefix_sum("entries", lengths)?;
        let of_row = |&row: &u32| csr.columns()[csr.row(row as usize)].iter().copied();
        let columns = self.order.par_iter().with_min_len(256);
        let columns = columns.flat_map_iter(of_row).collect();
        // SAFETY: every row is taken whole, and once.
        Ok(unsafe { CsrPattern::new_unchecked(csr.rows(), csr.cols(), offsets, columns) })
    }

    /// A matrix with its columns in the new order.
    ///
    /// # Errors
    /// [`FormatError::Length`] unless there is a place for each column.
    pub fn columns<T: Element>(&self, csr: &Csr<T>) -> Result<Csr<T>, FormatError> {
        let (pattern, from) = self.sorted_columns(csr.pattern())?;
        let of = |at: usize| csr.values()[from[at] as usize];
        let values = parallel::collect(from.len(), 4096, &of);
        Sparse::new(pattern, values)
    }

    /// A pattern with its columns in the new order.
    ///
    /// # Errors
    /// As [`Permutation::columns`].
    pub fn pattern_columns(&self, csr: &CsrPattern) -> Result<CsrPattern, FormatError> {
        Ok(self.sorted_columns(csr)?.0)
    }

    /// The pattern, and for each of its entries the old position.
    fn sorted_columns(&self, csr: &CsrPattern) -> Result<(CsrPattern, Vec<u32>), FormatError> {
        self.fits("columns", csr.cols())?;
        let place = self.inverse();
        let entry = |e: usize| (place.order[csr.columns()[e] as usize], e as u32);
        let rows = (0..csr.rows()).into_par_iter().with_min_len(64);
        let sorted = |row: usize| {
            let mut entries: Vec<(u32, u32)> = csr.row(row).map(entry).collect();
            entries.sort_unstable();
            entries
        };
        let (columns, from) = rows.flat_map_iter(sorted).unzip();
        let offsets = csr.offsets().to_vec();
        // SAFETY: rows keep their lengths; the new columns of a row differ as the old ones did, and were sorted.
        let pattern =
            unsafe { CsrPattern::new_unchecked(csr.rows(), csr.cols(), offsets, columns) };
        Ok((pattern, from))
    }

    /// A dense tensor with its slices along the first axis (the rows of a matrix) in the new order.
    ///
    /// # Errors
    /// [`FormatError::Length`] unless there is a place for each slice; [`FormatError::Memory`] if there is no memory.
    pub fn dense_rows<T: Element>(&self, dense: &Dense<T>) -> Result<Dense<T>, FormatError> {
        self.fits("rows", dense.shape().first().copied().unwrap_or(0))?;
        let mut moved = Dense::zeros(dense.shape())?;
        let width = dense.strides().first().copied().unwrap_or(1).max(1);
        parallel::chunks(moved.values_mut(), width, &|row, to: &mut [T]| {
            let old = self.order[row] as usize;
            to.copy_from_slice(&dense.values()[old * width..][..width]);
        });
        Ok(moved)
    }

    fn fits(&self, what: &'static str, found: usize) -> Result<(), FormatError> {
        check::length(what, found, self.len())
    }
}
