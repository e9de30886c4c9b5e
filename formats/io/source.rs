//! Argument of a writer: a borrowed matrix in one of the formats that files can store.

use crate::{Bsr, Coo, Csc, Csr, Dense};

/// Matrix to be written. `&Coo`, `&Csr`, `&Csc`, `&Bsr` and `&Dense` convert into it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Source<'a, T> {
    /// Coordinates.
    Coo(&'a Coo<T>),
    /// Compressed sparse rows.
    Csr(&'a Csr<T>),
    /// Compressed sparse columns.
    Csc(&'a Csc<T>),
    /// Compressed block rows.
    Bsr(&'a Bsr<T>),
    /// Dense array.
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
