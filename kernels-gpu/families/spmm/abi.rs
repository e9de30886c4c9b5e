//! Tiles and parameters of the family.

mod batched;
mod bitmap;
mod sell;
mod spmm;
mod staged;
mod vectors;
mod vectors_narrow;

pub use batched::*;
pub use bitmap::*;
pub use sell::*;
pub use spmm::*;
pub use staged::*;
pub use vectors::*;
pub use vectors_narrow::*;
