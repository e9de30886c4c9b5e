//! Sparse tensors and patterns whose format is determined at run time.

use std::sync::Arc;

use crate::allocate;
use crate::check;
use crate::error::*;
use crate::pattern::{Sealed, mapped};
use crate::{
    Bitmap, BitmapPattern, BlockCoo, BlockCooPattern, BlockGroupCoo, BlockGroupCooPattern, Bsr,
    BsrPattern, Bytemap, BytemapPattern, Coo, CooPattern, Csc, CscPattern, Csr, CsrPattern,
    Element, Ell, EllPattern, Format, GroupCoo, GroupCooPattern, HybridGroupCoo,
    HybridGroupCooPattern, IndexArray, Nm, NmPattern, Pattern, SlicedEll, SlicedEllPattern, Sparse,
};

/// Enums over all formats, and the functions that are identical for each format.
macro_rules! formats {
    ($($(#[$what:meta])* $format:ident $pattern:ident;)*) => {
        /// Sparse tensor in any format.
        #[derive(Clone, Debug, PartialEq)]
        pub enum AnySparse<T> {
            $($(#[$what])* $format($format<T>),)*
        }

        /// Borrowed sparse tensor in any format. [`AsSparse`] creates it.
        #[derive(Debug)]
        pub enum SparseRef<'a, T> {
            $($(#[$what])* $format(&'a $format<T>),)*
        }

        /// Borrowed pattern of any format, for code that does not depend on the type of the values.
        #[derive(Clone, Copy, Debug)]
        pub enum AnyPattern<'a> {
            $($(#[$what])* $format(&'a Arc<$pattern>),)*
        }

        /// Shared pattern of any format. Cloning it does not copy the arrays.
        #[derive(Clone, Debug)]
        pub enum SharedPattern {
            $($(#[$what])* $format(Arc<$pattern>),)*
        }

        $(impl Sealed for $pattern {
            fn borrow<T>(sparse: &$format<T>) -> SparseRef<'_, T> {
                SparseRef::$format(sparse)
            }
        }

        impl<T> From<$format<T>> for AnySparse<T> {
            fn from(sparse: $format<T>) -> Self {
                AnySparse::$format(sparse)
            }
        }

        impl From<$pattern> for SharedPattern {
            fn from(pattern: $pattern) -> Self {
                SharedPattern::$format(Arc::new(pattern))
            }
        })*

        impl<T> AsSparse<T> for AnySparse<T> {
            fn as_sparse(&self) -> SparseRef<'_, T> {
                match self {
                    $(AnySparse::$format(sparse) => SparseRef::$format(sparse),)*
                }
            }
        }

        impl<'a, T: Element> SparseRef<'a, T> {
            /// Pattern of the tensor.
            pub fn pattern(self) -> AnyPattern<'a> {
                match self {
                    $(SparseRef::$format(sparse) => AnyPattern::$format(sparse.pattern()),)*
                }
            }

            /// Values, one per slot.
            pub fn values(self) -> &'a [T] {
                match self {
                    $(SparseRef::$format(sparse) => sparse.values(),)*
                }
            }

            /// Returns an owned tensor. The pattern is shared; the values are copied.
            pub fn to_any(self) -> AnySparse<T> {
                match self {
                    $(SparseRef::$format(sparse) => AnySparse::$format(sparse.clone()),)*
                }
            }
        }

        impl<T: Element> AnySparse<T> {
            /// Mutable values, one per slot.
            pub fn values_mut(&mut self) -> &mut [T] {
                match self {
                    $(AnySparse::$format(sparse) => sparse.values_mut(),)*
                }
            }

            /// Converts the tensor into its pattern and its values.
            pub fn into_parts(self) -> (SharedPattern, Vec<T>) {
                match self {
                    $(AnySparse::$format(sparse) => {
                        let (pattern, values) = sparse.into_parts();
                        (SharedPattern::$format(pattern), values)
                    })*
                }
            }
        }

        impl SharedPattern {
            /// Borrows the pattern.
            pub fn view(&self) -> AnyPattern<'_> {
                match self {
                    $(SharedPattern::$format(pattern) => AnyPattern::$format(pattern),)*
                }
            }

            /// Creates a tensor without validation. `values` has one value per slot.
            fn joined<T: Element>(self, values: Vec<T>) -> AnySparse<T> {
                match self {
                    $(SharedPattern::$format(pattern) => {
                        AnySparse::$format(Sparse::of(pattern, values))
                    })*
                }
            }
        }

        impl<'a> AnyPattern<'a> {
            /// Format, with its block and group size.
            pub fn format(self) -> Format {
                match self {
                    $(AnyPattern::$format(pattern) => pattern.format(),)*
                }
            }

            /// Extents of the tensor.
            pub fn shape(self) -> &'a [usize] {
                match self {
                    $(AnyPattern::$format(pattern) => pattern.shape(),)*
                }
            }

            /// Stored entries without padding.
            pub fn nnz(self) -> usize {
                match self {
                    $(AnyPattern::$format(pattern) => pattern.nnz(),)*
                }
            }

            /// Length of the values array with padding.
            pub fn slots(self) -> usize {
                match self {
                    $(AnyPattern::$format(pattern) => pattern.slots(),)*
                }
            }

            /// Extents of the values array.
            pub fn value_shape(self) -> Vec<usize> {
                match self {
                    $(AnyPattern::$format(pattern) => pattern.value_shape(),)*
                }
            }

            /// Index arrays as copied to the device.
            pub fn arrays(self) -> Vec<IndexArray<'a>> {
                match self {
                    $(AnyPattern::$format(pattern) => pattern.arrays(),)*
                }
            }

            /// Returns a shared pattern. The arrays are not copied.
            pub fn shared(self) -> SharedPattern {
                match self {
                    $(AnyPattern::$format(pattern) => SharedPattern::$format(pattern.clone()),)*
                }
            }

            /// Whether both patterns are the same object in memory.
            pub fn is(self, other: AnyPattern<'_>) -> bool {
                match (self, other) {
                    $((AnyPattern::$format(a), AnyPattern::$format(b)) => Arc::ptr_eq(a, b),)*
                    _ => false,
                }
            }
        }

        impl PartialEq for AnyPattern<'_> {
            /// Compares the arrays only if the patterns are not the same object in memory.
            fn eq(&self, other: &Self) -> bool {
                self.is(*other)
                    || match (self, other) {
                        $((AnyPattern::$format(a), AnyPattern::$format(b)) => a == b,)*
                        _ => false,
                    }
            }
        }
    };
}

formats! {
    /// Coordinates.
    Coo CooPattern;
    /// Compressed sparse rows.
    Csr CsrPattern;
    /// Compressed sparse columns.
    Csc CscPattern;
    /// Compressed block rows.
    Bsr BsrPattern;
    /// Padded rows.
    Ell EllPattern;
    /// Grouped coordinates.
    GroupCoo GroupCooPattern;
    /// Grouped coordinates, with one group size per class of rows.
    HybridGroupCoo HybridGroupCooPattern;
    /// Block coordinates.
    BlockCoo BlockCooPattern;
    /// Grouped block coordinates.
    BlockGroupCoo BlockGroupCooPattern;
    /// Two of every four neighbors.
    Nm NmPattern;
    /// One bit per element, and values.
    Bitmap BitmapPattern;
    /// Positions as bytes, and values.
    Bytemap BytemapPattern;
    /// Slices of rows of similar length.
    SlicedEll SlicedEllPattern;
}

/// Types that can be borrowed as a sparse tensor of any format: every format, [`AnySparse`], and references to them.
/// Functions with such a parameter accept a value or a reference.
///
/// ```
/// use einsparse_formats::{AnySparse, AsSparse, Csr, CsrPattern};
///
/// fn slots(a: impl AsSparse<f32>) -> usize {
///     a.as_sparse().values().len()
/// }
///
/// let csr = Csr::new(CsrPattern::new(1, 3, vec![0, 2], vec![0, 2])?, vec![1.0, 2.0])?;
/// assert_eq!((slots(&csr), slots(AnySparse::from(csr))), (2, 2));
/// # Ok::<(), einsparse_formats::FormatError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no sparse tensor over `{T}`",
    label = "not a sparse tensor",
    note = "sparse tensors are those of the formats (`Csr`, `Bsr`, ..), `AnySparse` and references to them; \
            `upload_dense` takes a `Dense`"
)]
pub trait AsSparse<T> {
    /// Borrows the tensor.
    fn as_sparse(&self) -> SparseRef<'_, T>;
}

impl<P: Pattern, T> AsSparse<T> for Sparse<P, T> {
    fn as_sparse(&self) -> SparseRef<'_, T> {
        P::borrow(self)
    }
}

impl<T> Clone for SparseRef<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SparseRef<'_, T> {}

impl<T: Element> SparseRef<'_, T> {
    /// Bytes of the index arrays and the values.
    pub(crate) fn held(self) -> u64 {
        allocate::bytes_of(&self.pattern().arrays()) + size_of_val(self.values()) as u64
    }
}

impl<T> AsSparse<T> for SparseRef<'_, T> {
    fn as_sparse(&self) -> SparseRef<'_, T> {
        *self
    }
}

impl<T, A: AsSparse<T> + ?Sized> AsSparse<T> for &A {
    fn as_sparse(&self) -> SparseRef<'_, T> {
        (**self).as_sparse()
    }
}

impl SharedPattern {
    /// Creates a tensor from the pattern and its values.
    ///
    /// # Errors
    /// Returns [`FormatError::Length`] if the number of values is not the number of slots.
    pub fn with_values<T: Element>(self, values: Vec<T>) -> Result<AnySparse<T>> {
        check::length("values", values.len(), self.view().slots())?;
        Ok(self.joined(values))
    }
}

impl<T: Element> AnySparse<T> {
    /// Returns a tensor with `f` applied to every value, in parallel. The pattern is shared.
    pub fn map_values<U: Element>(&self, f: impl Fn(T) -> U + Sync) -> AnySparse<U> {
        self.pattern().shared().joined(mapped(self.values(), f))
    }

    /// Pattern of the tensor.
    pub fn pattern(&self) -> AnyPattern<'_> {
        self.as_sparse().pattern()
    }

    /// Format, with its block and group size.
    pub fn format(&self) -> Format {
        self.pattern().format()
    }

    /// Extents of the tensor.
    pub fn shape(&self) -> &[usize] {
        self.pattern().shape()
    }

    /// Stored entries without padding.
    pub fn nnz(&self) -> usize {
        self.pattern().nnz()
    }

    /// Length of the values array with padding.
    pub fn slots(&self) -> usize {
        self.values().len()
    }

    /// Extents of the values array.
    pub fn value_shape(&self) -> Vec<usize> {
        self.pattern().value_shape()
    }

    /// Values, one per slot.
    pub fn values(&self) -> &[T] {
        self.as_sparse().values()
    }

    /// Index arrays as copied to the device.
    pub fn arrays(&self) -> Vec<IndexArray<'_>> {
        self.pattern().arrays()
    }
}
