//! Attention at the entries of a mask.

pub mod entries;
pub mod gradient;
pub mod masks;
