//! What an expression's names are bound to: tensors in a context or on the host, index arrays, numbers.

use einsparse_formats::{AnySparse, Dense};

use super::{SparseTensor, Tensor};
use crate::dynamic::Dynamic;
use crate::registry::Scalar;

/// What a name of an expression is bound to. Made by `From` from host tensors (copied to the context),
/// tensors in the context, and numbers.
#[derive(Clone, Debug)]
pub enum Operand<'a, T: Scalar> {
    /// A sparse tensor in the context.
    Sparse(&'a SparseTensor<T>),
    /// A dense tensor in the context.
    Dense(&'a Tensor<T>),
    /// A sparse tensor on the host.
    HostSparse(AnySparse<T>),
    /// A dense tensor on the host.
    HostDense(&'a Dense<T>),
    /// An index array of a hand-written indirect Einsum: extents and indices. Its contents are part of a plan, which uploads what
    /// it makes of them: a run on a GPU reads the array it is given no further than to tell it from the planned one by its length and
    /// up to 64 of its slots, evenly spread (the family of small sparse tensors compares all of it). An array that
    /// differs elsewhere is not noticed: make a plan for it. A CPU context reads the array of each run.
    Index(&'a [usize], &'a [u32]),
    /// A dense tensor in the context, most of whose micro-tiles are empty, others at each run ([`dynamic`](crate::dynamic::dynamic)).
    Dynamic(Dynamic<'a, T>),
    /// A number.
    Scalar(f64),
}

impl<T: Scalar> Operand<'_, T> {
    /// Extents; a number has none.
    pub fn shape(&self) -> &[usize] {
        match self {
            Operand::Sparse(s) => s.shape(),
            Operand::HostSparse(s) => s.shape(),
            Operand::Dense(d) => d.shape(),
            Operand::HostDense(d) => d.shape(),
            Operand::Dynamic(d) => d.tensor.shape(),
            Operand::Index(shape, _) => shape,
            Operand::Scalar(_) => &[],
        }
    }

    /// What this is, for messages.
    pub fn describe(&self) -> String {
        match self {
            Operand::Sparse(s) => format!("{} tensor of shape {:?}", s.format(), s.shape()),
            Operand::HostSparse(s) => format!("{} tensor of shape {:?}", s.format(), s.shape()),
            Operand::Dense(d) => format!("dense tensor of shape {:?}", d.shape()),
            Operand::HostDense(d) => format!("dense tensor of shape {:?}", d.shape()),
            Operand::Dynamic(d) => format!("dynamic tensor of shape {:?}", d.tensor.shape()),
            Operand::Index(shape, _) => format!("index array of shape {shape:?}"),
            Operand::Scalar(x) => format!("number {x}"),
        }
    }
}

impl<'a, T: Scalar> From<&'a SparseTensor<T>> for Operand<'a, T> {
    fn from(s: &'a SparseTensor<T>) -> Self {
        Operand::Sparse(s)
    }
}

impl<'a, T: Scalar> From<&'a Tensor<T>> for Operand<'a, T> {
    fn from(d: &'a Tensor<T>) -> Self {
        Operand::Dense(d)
    }
}

impl<'a, T: Scalar> From<Dynamic<'a, T>> for Operand<'a, T> {
    fn from(d: Dynamic<'a, T>) -> Self {
        Operand::Dynamic(d)
    }
}

impl<'a, T: Scalar> From<&'a Dense<T>> for Operand<'a, T> {
    fn from(d: &'a Dense<T>) -> Self {
        Operand::HostDense(d)
    }
}

impl<'a, T: Scalar> From<(&'a [usize], &'a [u32])> for Operand<'a, T> {
    fn from((shape, data): (&'a [usize], &'a [u32])) -> Self {
        Operand::Index(shape, data)
    }
}

impl<T: Scalar> From<f64> for Operand<'_, T> {
    fn from(x: f64) -> Self {
        Operand::Scalar(x)
    }
}

impl<T: Scalar> From<&AnySparse<T>> for Operand<'_, T> {
    fn from(s: &AnySparse<T>) -> Self {
        Operand::HostSparse(s.clone())
    }
}

macro_rules! from_formats {
    ($($format:ident)*) => {
        $(impl<T: Scalar> From<&einsparse_formats::$format<T>> for Operand<'_, T> {
            fn from(s: &einsparse_formats::$format<T>) -> Self {
                Operand::HostSparse(s.clone().into())
            }
        })*
    };
}

from_formats!(Coo Csr Csc Bsr Ell GroupCoo BlockCoo BlockGroupCoo);
