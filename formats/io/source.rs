//! What a writer takes: a borrowed matrix in one of the formats that files can hold.

use crate::{Bsr, Coo, Csc, Csr, Dense};

/// A matrix to be written. `&Coo`, `&Csr`, `&Csc`, `&Bsr` and `&Dense` all convert into it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Source<'a, T> {
    /// Coordinates.
    Coo(&'a Coo<T>),
    /// Compressed rows.
    Csr(&'a Csr<T>),
    /// Compressed columns.
    Csc(&'a Csc<T>),
    /// Compressed rows of blocks.
    Bsr(&'a Bsr<T>),
    /// Every element.
    Dense(&'a Dense<T>),
}

macro_rules! source_from {
    ($($format:ident),*) => {$(
        impl<'a, T> From<&'a $format<T>> for Source<'a, T> {
            fn from(matrix: &'a $format<T>) -> Self {
                Self::$format(matrix)
            }
        }
    )*};
}
source_from!(Coo, Csr, Csc, Bsr, Dense);
