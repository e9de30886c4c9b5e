//! Offers of the kernels of the family.

pub(crate) mod convolution;
pub(crate) mod images;
pub(crate) mod pit;
