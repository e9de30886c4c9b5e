//! Which kernels of the family can run an expression.

pub(crate) mod convolution;
pub(crate) mod images;
pub(crate) mod pit;
