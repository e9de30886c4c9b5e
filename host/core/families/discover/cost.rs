//! Predicted cost of the kernels of the family.

pub(crate) mod live;
