//! What the kernels of the family are predicted to take.

pub(crate) mod live;
