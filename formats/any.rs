//! A sparse tensor whose format is known only at run time.

use crate::{
    Bitmap, BlockCoo, BlockGroupCoo, Bsr, Bytemap, Coo, Csc, Csr, Element, Ell, Format, GroupCoo,
    HybridGroupCoo, IndexArray, Nm, Pattern, SlicedEll,
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

macro_rules! each {
    ($any:expr, $s:ident => $body:expr) => {
        match $any {
            AnySparse::Coo($s) => $body,
            AnySparse::Csr($s) => $body,
            AnySparse::Csc($s) => $body,
            AnySparse::Bsr($s) => $body,
            AnySparse::Ell($s) => $body,
            AnySparse::GroupCoo($s) => $body,
            AnySparse::HybridGroupCoo($s) => $body,
            AnySparse::BlockCoo($s) => $body,
            AnySparse::BlockGroupCoo($s) => $body,
            AnySparse::Nm($s) => $body,
            AnySparse::Bitmap($s) => $body,
            AnySparse::Bytemap($s) => $body,
            AnySparse::SlicedEll($s) => $body,
        }
    };
}

pub(crate) use each;

macro_rules! variants {
    ($($format:ident),*) => {
        $(impl<T> From<$format<T>> for AnySparse<T> {
            fn from(sparse: $format<T>) -> Self {
                AnySparse::$format(sparse)
            }
        })*

        impl<T: Element> AnySparse<T> {
            /// Every value mapped, in parallel; the pattern is shared.
            pub fn map_values<U: Element>(&self, f: impl Fn(T) -> U + Sync) -> AnySparse<U> {
                match self {
                    $(AnySparse::$format(sparse) => AnySparse::$format(sparse.map_values(f)),)*
                }
            }
        }
    };
}

variants!(
    Coo,
    Csr,
    Csc,
    Bsr,
    Ell,
    GroupCoo,
    HybridGroupCoo,
    BlockCoo,
    BlockGroupCoo,
    Nm,
    Bitmap,
    Bytemap,
    SlicedEll
);

impl<T: Element> AnySparse<T> {
    /// The format, with its block and group size.
    pub fn format(&self) -> Format {
        each!(self, s => s.format())
    }

    /// Extents of the tensor.
    pub fn shape(&self) -> &[usize] {
        each!(self, s => s.shape())
    }

    /// Stored entries without padding.
    pub fn nnz(&self) -> usize {
        each!(self, s => s.nnz())
    }

    /// Length of the values array, padding included.
    pub fn slots(&self) -> usize {
        each!(self, s => s.slots())
    }

    /// Extents of the values array.
    pub fn value_shape(&self) -> Vec<usize> {
        each!(self, s => s.pattern().value_shape())
    }

    /// One value for each slot.
    pub fn values(&self) -> &[T] {
        each!(self, s => s.values())
    }

    /// The values, to be changed in place.
    pub fn values_mut(&mut self) -> &mut [T] {
        each!(self, s => s.values_mut())
    }

    /// The index arrays in device form.
    pub fn arrays(&self) -> Vec<IndexArray<'_>> {
        each!(self, s => s.arrays())
    }
}
