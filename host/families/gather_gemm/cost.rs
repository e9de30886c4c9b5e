//! What the kernels of the family are predicted to take.

pub(crate) mod conv;
pub(crate) mod grouped;
pub(crate) mod pit;
pub(crate) mod pit_conv;
