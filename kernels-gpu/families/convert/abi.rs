//! Tiles and parameters of the family.

mod convert;
mod entries;
mod expand;
mod lists;
mod prune;
mod scatter;
mod slicing;

pub use convert::*;
pub use entries::*;
pub use expand::*;
pub use lists::*;
pub use prune::*;
pub use scatter::*;
pub use slicing::*;
