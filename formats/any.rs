//! A sparse tensor, or a pattern, whose format is known only at run time.

use std::sync::Arc;

use crate::allocate;
use crate::check;
use crate::pattern::{Sealed, mapped};
use crate::{
    Bitmap, BitmapPattern, BlockCoo, BlockCooPattern, BlockGroupCoo, BlockGroupCooPattern, Bsr,
    BsrPattern, Bytemap, BytemapPattern, Coo, CooPattern, Csc, CscPattern, Csr, CsrPattern,
    Element, Ell, EllPattern, Format, FormatError, GroupCoo, GroupCooPattern, HybridGroupCoo,
    HybridGroupCooPattern, IndexArray, Nm, NmPattern, Pattern, SlicedEll, SlicedEllPattern, Sparse,
};

/// What any of the formats may be, and what is the same for each.
macro_rules! formats {
    ($($(#[$what:meta])* $format:ident $pattern:ident;)*) => {
        /// A sparse tensor in any of the formats.
        #[derive(Clone, Debug, PartialEq)]
        pub enum AnySparse<T> {
            $($(#[$what])* $format($format<T>),)*
        }

        /// A sparse tensor in any of the formats, borrowed. [`AsSparse`] makes it.
        #[derive(Debug)]
        pub enum SparseRef<'a, T> {
            $($(#[$what])* $format(&'a $format<T>),)*
        }

        /// A pattern of any format, borrowed: what code reads that does not depend on the type of the values.
        #[derive(Clone, Copy, Debug)]
        pub enum AnyPattern<'a> {
            $($(#[$what])* $format(&'a Arc<$pattern>),)*
        }

        /// A pattern of any format, held and not copied.
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
            /// The pattern alone.
            pub fn pattern(self) -> AnyPattern<'a> {
                match self {
                    $(SparseRef::$format(sparse) => AnyPattern::$format(sparse.pattern()),)*
                }
            }

            /// One value for each slot.
            pub fn values(self) -> &'a [T] {
                match self {
                    $(SparseRef::$format(sparse) => sparse.values(),)*
                }
            }

            /// A tensor of its own: the pattern is shared, the values are copied.
            pub fn to_any(self) -> AnySparse<T> {
                match self {
                    $(SparseRef::$format(sparse) => AnySparse::$format(sparse.clone()),)*
                }
            }
        }

        impl<T: Element> AnySparse<T> {
            /// The values, to be changed in place.
            pub fn values_mut(&mut self) -> &mut [T] {
                match self {
                    $(AnySparse::$format(sparse) => sparse.values_mut(),)*
                }
            }

            /// Takes it apart.
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
            /// The pattern.
            pub fn view(&self) -> AnyPattern<'_> {
                match self {
                    $(SharedPattern::$format(pattern) => AnyPattern::$format(pattern),)*
                }
            }

            /// With one value for each slot.
            fn joined<T: Element>(self, values: Vec<T>) -> AnySparse<T> {
                match self {
                    $(SharedPattern::$format(pattern) => {
                        AnySparse::$format(Sparse::of(pattern, values))
                    })*
                }
            }
        }

        impl<'a> AnyPattern<'a> {
            /// The format, with its block and group size.
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

            /// Length of the values array, padding included.
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

            /// The index arrays in device form.
            pub fn arrays(self) -> Vec<IndexArray<'a>> {
                match self {
                    $(AnyPattern::$format(pattern) => pattern.arrays(),)*
                }
            }

            /// Holds it.
            pub fn shared(self) -> SharedPattern {
                match self {
                    $(AnyPattern::$format(pattern) => SharedPattern::$format(pattern.clone()),)*
                }
            }

            /// Whether both are the same memory.
            pub fn is(self, other: AnyPattern<'_>) -> bool {
                match (self, other) {
                    $((AnyPattern::$format(a), AnyPattern::$format(b)) => Arc::ptr_eq(a, b),)*
                    _ => false,
                }
            }
        }

        impl PartialEq for AnyPattern<'_> {
            /// Compares the arrays only where they are not the same memory.
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
    /// Grouped coordinates, the size by classes of rows.
    HybridGroupCoo HybridGroupCooPattern;
    /// Block coordinates.
    BlockCoo BlockCooPattern;
    /// Grouped block coordinates.
    BlockGroupCoo BlockGroupCooPattern;
    /// Two of every four neighbours.
    Nm NmPattern;
    /// Bits and values.
    Bitmap BitmapPattern;
    /// Places as bytes, and values.
    Bytemap BytemapPattern;
    /// Slices of rows of about the same length.
    SlicedEll SlicedEllPattern;
}

/// What can be borrowed as a sparse tensor of any format: every format, [`AnySparse`], and references to them.
/// Functions that take it are given a value or a reference.
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
    /// The tensor, borrowed.
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
    /// Joins the pattern with its values.
    ///
    /// # Errors
    /// [`FormatError::Length`] unless there is one value for each slot.
    pub fn with_values<T: Element>(self, values: Vec<T>) -> Result<AnySparse<T>, FormatError> {
        check::length("values", values.len(), self.view().slots())?;
        Ok(self.joined(values))
    }
}

impl<T: Element> AnySparse<T> {
    /// Every value mapped, in parallel; the pattern is shared.
    pub fn map_values<U: Element>(&self, f: impl Fn(T) -> U + Sync) -> AnySparse<U> {
        self.pattern().shared().joined(mapped(self.values(), f))
    }

    /// The pattern alone.
    pub fn pattern(&self) -> AnyPattern<'_> {
        self.as_sparse().pattern()
    }

    /// The format, with its block and group size.
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

    /// Length of the values array, padding included.
    pub fn slots(&self) -> usize {
        self.values().len()
    }

    /// Extents of the values array.
    pub fn value_shape(&self) -> Vec<usize> {
        self.pattern().value_shape()
    }

    /// One value for each slot.
    pub fn values(&self) -> &[T] {
        self.as_sparse().values()
    }

    /// The index arrays in device form.
    pub fn arrays(&self) -> Vec<IndexArray<'_>> {
        self.pattern().arrays()
    }
}
