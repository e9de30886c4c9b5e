//! Patterns: the indices of a sparse tensor without its values. Contains the trait that the pattern of every format
//! implements, and the container that adds the values. A pattern is validated once, in its constructor, and then shared
//! by `Arc`.

use std::fmt::Debug;
use std::sync::Arc;

use crate::error::*;
use crate::parallel;
use crate::{Element, Format, allocate, check};

/// Index of a slot without entry. A term whose index slot is `PAD` is skipped, never multiplied.
pub const PAD: u32 = u32::MAX;

/// Meaning of an index array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Coordinates on an axis (of blocks, in block formats): `AM` for axis 0 of `A[m,k]`.
    Coordinate {
        /// The axis.
        axis: usize,
    },
    /// Start of each row (or column, or block row) of the axis, and the end of the last one: `AP`.
    Offsets {
        /// The axis.
        axis: usize,
    },
    /// One bit per element of the matrix, and offsets between the bits ([`BitmapPattern`](crate::BitmapPattern)).
    Bits,
    /// Start of the values of each tile ([`BitmapPattern`](crate::BitmapPattern)).
    Starts,
    /// Rows (or columns) of an axis in the order in which they are stored, followed by `PAD`.
    Order {
        /// The axis.
        axis: usize,
    },
    /// Range of an axis that each chunk of entries covers: start and end, in the units of the format.
    Windows {
        /// The axis.
        axis: usize,
    },
    /// Positions within groups of neighbors on an axis, packed into the bits of words
    /// ([`NmPattern`](crate::NmPattern)). Unpacked, they are `AK`.
    Positions {
        /// The axis.
        axis: usize,
    },
}

/// Index array in the form that is copied to the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexArray<'a> {
    /// Meaning of the array.
    pub role: Role,
    /// Extents of the array, row-major.
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

    /// Seals [`Pattern`](crate::Pattern): only the patterns of [`AnyPattern`](crate::AnyPattern) implement it. Kernels
    /// rely on the validation in their constructors.
    pub trait Sealed: Sized {
        /// Borrows the tensor as a tensor of any format.
        fn borrow<T>(sparse: &Sparse<Self, T>) -> SparseRef<'_, T>;
    }
}

pub(crate) use sealed::Sealed;

/// Accessors of the pattern of a matrix: its extents, and the given arrays.
macro_rules! accessors {
    ($pattern:ident { $($(#[$what:meta])* $array:ident: $element:ty,)* }) => {
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
            pub fn $array(&self) -> &[$element] {
                &self.$array
            })*
        }
    };
}

/// Pattern of a matrix format: the struct, the type of its matrices, the accessors of its parameters and arrays, the
/// constructor without validation, and [`Pattern`]. The expressions after the braces describe the pattern `p`: its
/// format, stored count of entries or blocks, number of entries, extents of the values, and index arrays.
macro_rules! matrix {
    (
        $(#[$doc:meta])* $pattern:ident, $(#[$tensor_doc:meta])* $tensor:ident
        ($($(#[$what:meta])* $parameter:ident: $type:ty),*)
        { $($(#[$array_doc:meta])* $array:ident: $element:ty,)* }
        $p:ident is $format:expr;
        $(stores $count:ident: $counted:expr;)?
        $(nnz $nnz:expr;)?
        values $extents:expr;
        arrays $arrays:expr
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $pattern {
            shape: [usize; 2],
            $($parameter: $type,)*
            $($array: Vec<$element>,)*
            $($count: usize,)?
        }

        $(#[$tensor_doc])*
        pub type $tensor<T> = $crate::Sparse<$pattern, T>;

        $crate::pattern::accessors! { $pattern { $($(#[$array_doc])* $array: $element,)* } }

        impl $pattern {
            $($(#[$what])*
            pub fn $parameter(&self) -> $type {
                self.$parameter
            })*

            /// Stores the arrays without validation.
            ///
            /// # Safety
            #[doc = concat!("[`", stringify!($pattern), "::new`] would accept the arguments.")]
            /// Kernels and converters rely on this and index without bounds checks.
            pub unsafe fn new_unchecked(
                rows: usize,
                cols: usize,
                $($parameter: $type,)*
                $($array: Vec<$element>,)*
            ) -> Self {
                #[allow(unused_mut)]
                let mut made = $pattern {
                    shape: [rows, cols],
                    $($parameter,)*
                    $($array,)*
                    $($count: 0,)?
                };
                $(made.$count = {
                    let $p = &made;
                    $counted
                };)?
                made
            }
        }

        impl $crate::Pattern for $pattern {
            fn format(&self) -> $crate::Format {
                #[allow(unused_variables)]
                let $p = self;
                $format
            }

            fn shape(&self) -> &[usize] {
                &self.shape
            }

            $(fn nnz(&self) -> usize {
                let $p = self;
                $nnz
            })?

            fn value_shape(&self) -> Vec<usize> {
                let $p = self;
                $extents.into()
            }

            fn arrays(&self) -> Vec<$crate::IndexArray<'_>> {
                let $p = self;
                $arrays.into()
            }
        }
    };
}

pub(crate) use accessors;
pub(crate) use matrix;

/// Pattern of a sparse tensor in one format. This trait is sealed.
pub trait Pattern: Sealed + Debug + Clone + PartialEq + Send + Sync + 'static {
    /// Format, with its block and group size.
    fn format(&self) -> Format;
    /// Extents of the tensor.
    fn shape(&self) -> &[usize];
    /// Stored entries without padding. Block formats count every element of every block. N:M counts every
    /// slot of every group that contains a column.
    fn nnz(&self) -> usize {
        self.slots()
    }
    /// Length of the values array with padding.
    fn slots(&self) -> usize {
        self.value_shape().iter().product()
    }
    /// Extents of the values array, such as `[P, g, bm, bk]`. Their product is [`Pattern::slots`].
    fn value_shape(&self) -> Vec<usize>;
    /// Index arrays as copied to the device.
    fn arrays(&self) -> Vec<IndexArray<'_>>;
}

/// Sparse tensor: a shared pattern and one value per slot.
///
/// Padding slots and elements of edge blocks outside the shape are zero by convention. No code reads them.
#[derive(Clone, Debug, PartialEq)]
pub struct Sparse<P, T> {
    pattern: Arc<P>,
    values: Vec<T>,
}

impl<P: Pattern, T: Element> Sparse<P, T> {
    /// Creates a tensor from a pattern and its values.
    ///
    /// # Errors
    /// Returns [`FormatError::Length`] if the number of values is not the number of slots.
    pub fn new(pattern: impl Into<Arc<P>>, values: Vec<T>) -> Result<Self> {
        let pattern = pattern.into();
        check::length("values", values.len(), pattern.slots())?;
        Ok(Sparse { pattern, values })
    }

    /// Shared pattern.
    pub fn pattern(&self) -> &Arc<P> {
        &self.pattern
    }

    /// Values, one per slot.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// Mutable values, one per slot.
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }

    /// Converts the tensor into its pattern and its values.
    pub fn into_parts(self) -> (Arc<P>, Vec<T>) {
        (self.pattern, self.values)
    }

    /// Bytes of the index arrays and the values.
    pub(crate) fn held(&self) -> u64 {
        allocate::bytes_of(&self.arrays()) + size_of_val(self.values()) as u64
    }

    /// Returns a tensor with the same pattern and `f` applied to every value, in parallel.
    pub fn map_values<U: Element>(&self, f: impl Fn(T) -> U + Sync) -> Sparse<P, U> {
        Sparse::of(self.pattern.clone(), mapped(&self.values, f))
    }

    /// Creates a tensor without validation. `values` has one value per slot.
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

    /// Length of the values array with padding.
    pub fn slots(&self) -> usize {
        self.values.len()
    }

    /// Format, with its block and group size.
    pub fn format(&self) -> Format {
        self.pattern.format()
    }

    /// Index arrays as copied to the device.
    pub fn arrays(&self) -> Vec<IndexArray<'_>> {
        self.pattern.arrays()
    }
}

/// Applies `f` to every value, in parallel.
pub(crate) fn mapped<T: Element, U: Element>(values: &[T], f: impl Fn(T) -> U + Sync) -> Vec<U> {
    parallel::collect(values.len(), 4096, &|at| f(values[at]))
}
