//! Validated permutations of rows or columns, their inverses, and their application to matrices.

use rayon::prelude::*;

use crate::convert::prefix_sum;
use crate::error::*;
use crate::parallel;
use crate::{Csr, CsrPattern, Dense, Element, Sparse, allocate, check};

/// Permutation of the indices of one axis: index `i` of the new order is index `order[i]` of the old order.
///
/// Let P permute the rows of A, and Q the columns of A and the rows of B. The product of the permuted matrices is then
/// C with its rows permuted by P. The inverse of P on these rows restores C:
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
    /// Validates and stores the order: the old index for each new index.
    ///
    /// # Errors
    /// Returns an error if there are more indices than fit u32, an index is out of range, or an index occurs twice.
    pub fn new(order: Vec<u32>) -> Result<Self> {
        check::extent("places", order.len())?;
        check::below("order", &order, order.len())?;
        let mut first: Vec<u32> = check::zeroed("places", order.len())?;
        for (at, &old) in order.iter().enumerate() {
            // Positions are stored plus 1, so that 0 means "not seen".
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

    /// Identity permutation.
    ///
    /// # Errors
    /// Returns an error if there are more indices than fit u32, and [`FormatError::Memory`] if allocation fails.
    pub fn identity(len: usize) -> Result<Self> {
        check::extent("places", len)?;
        Ok(Permutation { order: allocate::collected("places", 0..len as u32)? })
    }

    /// Stores an order without validation. Each index must occur once.
    pub(crate) fn of_places(order: Vec<u32>) -> Self {
        debug_assert!(Permutation::new(order.clone()).is_ok());
        Permutation { order }
    }

    /// Old index for each new index.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// Number of indices.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether the permutation is empty.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Whether the permutation is the identity.
    pub fn is_identity(&self) -> bool {
        self.order.iter().enumerate().all(|(i, &o)| i == o as usize)
    }

    /// Inverse permutation: the new index for each old index.
    pub fn inverse(&self) -> Permutation {
        let mut order = vec![0; self.len()];
        for (new, &old) in self.order.iter().enumerate() {
            order[old as usize] = new as u32;
        }
        Permutation { order }
    }

    /// Composition: applies this permutation first, then `next`.
    ///
    /// # Errors
    /// Returns [`FormatError::Length`] if the lengths differ.
    pub fn then(&self, next: &Permutation) -> Result<Permutation> {
        self.fits("order", next.len())?;
        let order = next.order.iter().map(|&p| self.order[p as usize]);
        Ok(Permutation { order: order.collect() })
    }

    /// Returns a matrix with permuted rows.
    ///
    /// # Errors
    /// Returns [`FormatError::Length`] if the number of rows is not the length of the permutation.
    pub fn rows<T: Element>(&self, csr: &Csr<T>) -> Result<Csr<T>> {
        let pattern = self.pattern_rows(csr.pattern())?;
        let old = csr.pattern();
        let values = parallel::gathered(self.order.len(), 256, &|rows, found| {
            for &row in &self.order[rows] {
                found.extend_from_slice(&csr.values()[old.row(row as usize)]);
            }
        });
        Sparse::new(pattern, values)
    }

    /// Returns a pattern with permuted rows.
    ///
    /// # Errors
    /// See [`Permutation::rows`].
    pub fn pattern_rows(&self, csr: &CsrPattern) -> Result<CsrPattern> {
        self.fits("rows", csr.rows())?;
        let lengths = self.order.iter().map(|&row| csr.row(row as usize).len());
        let offsets = prefix_sum("entries", lengths)?;
        let of_row = |&row: &u32| csr.columns()[csr.row(row as usize)].iter().copied();
        let columns = self.order.par_iter().with_min_len(256);
        let columns = columns.flat_map_iter(of_row).collect();
        // SAFETY: each valid row is copied completely and once.
        Ok(unsafe { CsrPattern::new_unchecked(csr.rows(), csr.cols(), offsets, columns) })
    }

    /// Returns a matrix with permuted columns.
    ///
    /// # Errors
    /// Returns [`FormatError::Length`] if the number of columns is not the length of the permutation.
    pub fn columns<T: Element>(&self, csr: &Csr<T>) -> Result<Csr<T>> {
        let (pattern, from) = self.sorted_columns(csr.pattern())?;
        let of = |at: usize| csr.values()[from[at] as usize];
        let values = parallel::collect(from.len(), 4096, &of);
        Sparse::new(pattern, values)
    }

    /// Returns a pattern with permuted columns.
    ///
    /// # Errors
    /// See [`Permutation::columns`].
    pub fn pattern_columns(&self, csr: &CsrPattern) -> Result<CsrPattern> {
        Ok(self.sorted_columns(csr)?.0)
    }

    /// Pattern with permuted columns, and the old position of each of its entries.
    fn sorted_columns(&self, csr: &CsrPattern) -> Result<(CsrPattern, Vec<u32>)> {
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
        // SAFETY: rows keep their lengths. The new columns of a row are distinct like the old ones, and were sorted.
        let pattern =
            unsafe { CsrPattern::new_unchecked(csr.rows(), csr.cols(), offsets, columns) };
        Ok((pattern, from))
    }

    /// Returns a dense tensor with permuted slices along the first axis (the rows of a matrix).
    ///
    /// # Errors
    /// Returns [`FormatError::Length`] if the number of slices is not the length of the permutation, and
    /// [`FormatError::Memory`] if allocation fails.
    pub fn dense_rows<T: Element>(&self, dense: &Dense<T>) -> Result<Dense<T>> {
        self.fits("rows", dense.shape().first().copied().unwrap_or(0))?;
        let mut moved = Dense::zeros(dense.shape())?;
        let width = dense.strides().first().copied().unwrap_or(1).max(1);
        parallel::chunks(moved.values_mut(), width, &|row, to: &mut [T]| {
            let old = self.order[row] as usize;
            to.copy_from_slice(&dense.values()[old * width..][..width]);
        });
        Ok(moved)
    }

    fn fits(&self, what: &'static str, found: usize) -> Result<()> {
        check::length(what, found, self.len())
    }
}
