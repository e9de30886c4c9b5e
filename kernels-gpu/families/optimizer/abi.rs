//! Tiles and params of the family.

mod cross_entropy;
mod optimizer;

pub use cross_entropy::*;
pub use optimizer::*;
