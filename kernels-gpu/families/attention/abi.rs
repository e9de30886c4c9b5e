//! Tiles and params of the family.

mod attention;
mod decode;
mod masks;

pub use attention::*;
pub use decode::*;
pub use masks::*;
