//! Tiles and parameters of the family.

mod cross_entropy;
mod optimizer;
mod weight_gradient;

pub use cross_entropy::*;
pub use optimizer::*;
pub use weight_gradient::*;
