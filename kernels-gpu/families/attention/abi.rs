//! Tiles and params of the family.

mod attention;
mod masks;

pub use attention::*;
pub use masks::*;
