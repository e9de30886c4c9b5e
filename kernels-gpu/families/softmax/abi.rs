//! Tiles and parameters of the family.

mod softmax;

pub use softmax::*;
