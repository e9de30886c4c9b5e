//! Tiles and parameters of the family.

mod levels;

pub use levels::*;
