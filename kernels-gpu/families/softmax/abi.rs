//! Tiles and params of the family.

mod softmax;

pub use softmax::*;
