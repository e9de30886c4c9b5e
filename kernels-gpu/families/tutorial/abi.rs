//! Tiles and params of the family.

mod levels;

pub use levels::*;
