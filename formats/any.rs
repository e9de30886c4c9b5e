//! A sparse tensor, or a pattern, whose format is known only at run time.

use std::sync::Arc;

use crate::check;
use crate::pattern::mapped;
use crate::{
    Bitmap, BitmapPattern, BlockCoo, BlockCooPattern, BlockGroupCoo, BlockGroupCooPattern, Bsr,
    BsrPattern, Bytemap, BytemapPattern, Coo, CooPattern, Csc, CscPattern, Csr, CsrPattern,
    Element, Ell, EllPattern, Format, FormatError, GroupCoo, GroupCooPattern, HybridGroupCoo,
    HybridGroupCooPattern, IndexArray, Nm, NmPattern, Pattern, SlicedEll, SlicedEllPattern, Sparse,
};

/// A sparse tensor in any of the formats.
#[derive(Clone, Debug, PartialEq)]
pub enum AnySparse<T> {
    /// Coordinates.
    Coo(Coo<T>),
    /// Compressed sparse rows.
    Csr(Csr<T>),
    /// Compressed sparse columns.
    Csc(Csc<T>),
    /// Compressed block rows.
    Bsr(Bsr<T>),
    /// Padded rows.
    Ell(Ell<T>),
    /// Grouped coordinates.
    GroupCoo(GroupCoo<T>),
    /// Grouped coordinates, the size by classes of rows.
    HybridGroupCoo(HybridGroupCoo<T>),
    /// Block coordinates.
    BlockCoo(BlockCoo<T>),
    /// Grouped block coordinates.
    BlockGroupCoo(BlockGroupCoo<T>),
    /// Two of every four neighbours.
    Nm(Nm<T>),
    /// Bits and values.
    Bitmap(Bitmap<T>),
    /// Places as bytes, and values.
    Bytemap(Bytemap<T>),
    /// Slices of rows of about the same length.
    SlicedEll(SlicedEll<T>),
}

/// A pattern of any format, borrowed: what code reads that does not depend on the type of the values.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the variants are those of `AnySparse`")]
pub enum AnyPattern<'a> {
    Coo(&'a Arc<CooPattern>),
    Csr(&'a Arc<CsrPattern>),
    Csc(&'a Arc<CscPattern>),
    Bsr(&'a Arc<BsrPattern>),
    Ell(&'a Arc<EllPattern>),
    GroupCoo(&'a Arc<GroupCooPattern>),
    HybridGroupCoo(&'a Arc<HybridGroupCooPattern>),
    BlockCoo(&'a Arc<BlockCooPattern>),
    BlockGroupCoo(&'a Arc<BlockGroupCooPattern>),
    Nm(&'a Arc<NmPattern>),
    Bitmap(&'a Arc<BitmapPattern>),
    Bytemap(&'a Arc<BytemapPattern>),
    SlicedEll(&'a Arc<SlicedEllPattern>),
}

/// A pattern of any format, held and not copied.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the variants are those of `AnySparse`")]
pub enum SharedPattern {
    Coo(Arc<CooPattern>),
    Csr(Arc<CsrPattern>),
    Csc(Arc<CscPattern>),
    Bsr(Arc<BsrPattern>),
    Ell(Arc<EllPattern>),
    GroupCoo(Arc<GroupCooPattern>),
    HybridGroupCoo(Arc<HybridGroupCooPattern>),
    BlockCoo(Arc<BlockCooPattern>),
    BlockGroupCoo(Arc<BlockGroupCooPattern>),
    Nm(Arc<NmPattern>),
    Bitmap(Arc<BitmapPattern>),
    Bytemap(Arc<BytemapPattern>),
    SlicedEll(Arc<SlicedEllPattern>),
}

macro_rules! each {
    ($any:ident: $value:expr, $s:ident => $body:expr) => {
        match $value {
            $any::Coo($s) => $body,
            $any::Csr($s) => $body,
            $any::Csc($s) => $body,
            $any::Bsr($s) => $body,
            $any::Ell($s) => $body,
            $any::GroupCoo($s) => $body,
            $any::HybridGroupCoo($s) => $body,
            $any::BlockCoo($s) => $body,
            $any::BlockGroupCoo($s) => $body,
            $any::Nm($s) => $body,
            $any::Bitmap($s) => $body,
            $any::Bytemap($s) => $body,
            $any::SlicedEll($s) => $body,
        }
    };
}

macro_rules! variants {
    ($($format:ident $pattern:ident),*) => {
        $(impl<T> From<$format<T>> for AnySparse<T> {
            fn from(sparse: $format<T>) -> Self {
                AnySparse::$format(sparse)
            }
        }

        impl From<$pattern> for SharedPattern {
            fn from(pattern: $pattern) -> Self {
                SharedPattern::$format(Arc::new(pattern))
            }
        })*

        impl<T: Element> AnySparse<T> {
            /// Every value mapped, in parallel; the pattern is shared.
            pub fn map_values<U: Element>(&self, f: impl Fn(T) -> U + Sync) -> AnySparse<U> {
                self.pattern().shared().joined(mapped(self.values(), f))
            }

            /// The pattern alone.
            pub fn pattern(&self) -> AnyPattern<'_> {
                match self {
                    $(AnySparse::$format(sparse) => AnyPattern::$format(sparse.pattern()),)*
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

            /// Joins the pattern with its values.
            ///
            /// # Errors
            /// [`FormatError::Length`] unless there is one value for each slot.
            pub fn with_values<T: Element>(self, values: Vec<T>) -> Result<AnySparse<T>, FormatError> {
                check::length("values", values.len(), self.view().slots())?;
                Ok(self.joined(values))
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

        impl AnyPattern<'_> {
            /// Holds it.
            pub fn shared(self) -> SharedPattern {
                match self {
                    $(AnyPattern::$format(pattern) => SharedPattern::$format(pattern.clone()),)*
                }
            }
        }

        impl AnyPattern<'_> {
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

variants!(
    Coo CooPattern,
    Csr CsrPattern,
    Csc CscPattern,
    Bsr BsrPattern,
    Ell EllPattern,
    GroupCoo GroupCooPattern,
    HybridGroupCoo HybridGroupCooPattern,
    BlockCoo BlockCooPattern,
    BlockGroupCoo BlockGroupCooPattern,
    Nm NmPattern,
    Bitmap BitmapPattern,
    Bytemap BytemapPattern,
    SlicedEll SlicedEllPattern
);

impl<'a> AnyPattern<'a> {
    /// The format, with its block and group size.
    pub fn format(self) -> Format {
        each!(AnyPattern: self, p => p.format())
    }

    /// Extents of the tensor.
    pub fn shape(self) -> &'a [usize] {
        each!(AnyPattern: self, p => p.shape())
    }

    /// Stored entries without padding.
    pub fn nnz(self) -> usize {
        each!(AnyPattern: self, p => p.nnz())
    }

    /// Length of the values array, padding included.
    pub fn slots(self) -> usize {
        each!(AnyPattern: self, p => p.slots())
    }

    /// Extents of the values array.
    pub fn value_shape(self) -> Vec<usize> {
        each!(AnyPattern: self, p => p.value_shape())
    }

    /// The index arrays in device form.
    pub fn arrays(self) -> Vec<IndexArray<'a>> {
        each!(AnyPattern: self, p => p.arrays())
    }
}

impl<T: Element> AnySparse<T> {
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
        each!(AnySparse: self, s => s.values())
    }

    /// The values, to be changed in place.
    pub fn values_mut(&mut self) -> &mut [T] {
        each!(AnySparse: self, s => s.values_mut())
    }

    /// The index arrays in device form.
    pub fn arrays(&self) -> Vec<IndexArray<'_>> {
        self.pattern().arrays()
    }
}
