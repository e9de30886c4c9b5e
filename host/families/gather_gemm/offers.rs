//! Which kernels of the family can run an expression.

pub(crate) mod convolution;
pub(crate) mod pit;
pub(crate) mod pit_conv;
