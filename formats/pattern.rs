//! Indices without values: the trait every format's pattern has, and the container that adds the values.
//! A pattern is checked once, in its constructor, and then shared by `Arc`.

use std::fmt::Debug;
use std::sync::Arc;

use crate::parallel;
use crate::{Element, Format, FormatError, allocate, check};

/// An index slot that holds no entry. A term whose index slot is `PAD` is dropped, never multiplied.
pub const PAD: u32 = u32::MAX;

/// What an index array says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Coordinates on an axis (of blocks, in block formats). `AM` for axis 0 of `A[m,k]`.
    Coordinate {
        /// The axis.
        axis: usize,
    },
    /// Where each row (or column, or block row) of the axis starts; one more than rows. `AP`.
    Offsets {
        /// The axis.
        axis: usize,
    },
    /// A bit for each place, and offsets between them ([`BitmapPattern`](crate::BitmapPattern)).
    Bits,
    /// Where the values of each tile start ([`BitmapPattern`](crate::BitmapPattern)).
    Starts,
    /// The rows (or columns) of an axis in the order in which they are stored, `PAD` behind the last.
    Order {
        /// The axis.
        axis: usize,
    },
    /// Which stretch of an axis each piece of the entries lies in: first and last, in the units of the format.
    Windows {
        /// The axis.
        axis: usize,
    },
    /// Places within groups of neighbours on an axis, packed into the bits of words ([`NmPattern`](crate::NmPattern)).
    /// Unpacked, `AK`.
    Positions {
        /// The axis.
        axis: usize,
    },
}

/// One index array in the form the device gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexArray<'a> {
    /// What it says.
    pub role: Role,
    /// Its extents, row-major.
    pub shape: Vec<usize>,
    /// The indices.
    pub data: &'a [u32],
}

impl<'a> IndexArray<'a> {
    pub(crate) fn new(role: Role, shape: impl Into<Vec<usize>>, data: &'a [u32]) -> Self {
        let shape = shape.into();
        IndexArray { role, shape, data }
    }

    pub(crate) fn coordinate(axis: usize, shape: impl Into<Vec<usize>>, data: &'a [u32]) -> Self {
        Self::new(Role::Coordinate { axis }, shape, data)
    }

    pub(crate) fn offsets(axis: usize, data: &'a [u32]) -> Self {
        Self::new(Role::Offsets { axis }, [data.len()], data)
    }
}

mod sealed {
    use crate::{Sparse, SparseRef};

    /// What kernels read was checked by the constructors of the patterns of [`AnyPattern`](crate::AnyPattern), and of
    /// no others.
    pub trait Sealed: Sized {
        /// As a tensor of any format.
        fn borrow<T>(sparse: &Sparse<Self, T>) -> SparseRef<'_, T>;
    }
}

pub(crate) use sealed::Sealed;

/// What the pattern of a matrix shows: its extents, and these of its arrays.
macro_rules! matrix {
    ($pattern:ident { $($(#[$what:meta])* $array:ident,)* }) => {
        impl $pattern {
            /// Rows of the matrix.
            pub fn rows(&self) -> usize {
                self.shape[0]
            }

            /// Columns of the matrix.
            pub fn cols(&self) -> usize {
                self.shape[1]
            }

            $($(#[$what])*
            pub fn $array(&self) -> &[u32] {
                &self.$array
            })*
        }
    };
}

pub(crate) use matrix;

/// Where the entries of a sparse tensor are, in one format. Sealed.
pub trait Pattern: Sealed + Debug + Clone + PartialEq + Send + Sync + 'static {
    /// The format, with its block and group size.
    fn format(&self) -> Format;
    /// Extents of the tensor.
    fn shape(&self) -> &[usize];
    /// Stored entries without padding. Block formats count every element of every block,
    /// N:M every slot of every group that holds a column.
    fn nnz(&self) -> usize {
        self.slots()
    }
    /// Length of the values array, padding included.
    fn slots(&self) -> usize {
        self.value_shape().iter().product()
    }
    /// Extents of the values array, e.g. `[P, g, bm, bk]`; their product is [`Pattern::slots`].
    fn value_shape(&self) -> Vec<usize>;
    /// The index arrays in device form.
    fn arrays(&self) -> Vec<IndexArray<'_>>;
}

/// A sparse tensor: a shared pattern and one value for each of its slots.
///
/// Padding slots and the parts of edge blocks outside the shape hold zeros by convention; nothing reads them.
#[derive(Clone, Debug, PartialEq)]
pub struct Sparse<P, T> {
    pattern: Arc<P>,
    values: Vec<T>,
}

impl<P: Pattern, T: Element> Sparse<P, T> {
    /// Joins a pattern with its values.
    ///
    /// # Errors
    /// [`FormatError::Length`] unless there is one value for each slot.
    pub fn new(pattern: impl Into<Arc<P>>, values: Vec<T>) -> Result<Self, FormatError> {
        let pattern = pattern.into();
        check::length("values", values.len(), pattern.slots())?;
        Ok(Sparse { pattern, values })
    }

    /// The pattern, to be shared.
    pub fn pattern(&self) -> &Arc<P> {
        &self.pattern
    }

    /// One value for each slot.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The values, to be changed in place.
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }

    /// Takes it apart.
    pub fn into_parts(self) -> (Arc<P>, Vec<T>) {
        (self.pattern, self.values)
    }

    /// Bytes of the index arrays and the values.
    pub(crate) fn held(&self) -> u64 {
        allocate::bytes_of(&self.arrays()) + size_of_val(self.values()) as u64
    }

    /// The same pattern with every value mapped, in parallel.
    pub fn map_values<U: Element>(&self, f: impl Fn(T) -> U + Sync) -> Sparse<P, U> {
        Sparse::of(self.pattern.clone(), mapped(&self.values, f))
    }

    /// One value for each slot.
    pub(crate) fn of(pattern: Arc<P>, values: Vec<T>) -> Self {
        Sparse { pattern, values }
    }

    /// Extents of the tensor.
    pub fn shape(&self) -> &[usize] {
        self.pattern.shape()
    }

    /// Stored entries without padding.
    pub fn nnz(&self) -> usize {
        self.pattern.nnz()
    }

    /// Length of the values array.
    pub fn slots(&self) -> usize {
        self.values.len()
    }

    /// The format, with its block and group size.
    pub fn format(&self) -> Format {
        self.pattern.format()
    }

    /// The index arrays in device form.
    pub fn arrays(&self) -> Vec<IndexArray<'_>> {
        self.pattern.arrays()
    }
}

/// Every value mapped, in parallel.
pub(crate) fn mapped<T: Element, U: Element>(values: &[T], f: impl Fn(T) -> U + Sync) -> Vec<U> {
    parallel::collect(values.len(), 4096, &|at| f(values[at]))
}
