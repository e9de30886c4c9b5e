//! Predicted cost of the kernels of the family.

pub(crate) mod conv;
pub(crate) mod grouped;
pub(crate) mod pit;
pub(crate) mod pit_conv;
