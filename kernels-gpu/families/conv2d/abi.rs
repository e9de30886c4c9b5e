//! Tiles and parameters of the family.

mod conv2d;

pub use conv2d::*;
