//! Tiles and parameters of the family.

mod attention;
mod decode;
mod key_blocks;
mod masks;

pub use attention::*;
pub use decode::*;
pub use key_blocks::*;
pub use masks::*;
