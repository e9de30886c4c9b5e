//! Blocks and dense matrices on Tensor Cores.

pub mod dense;
pub mod layer;
pub mod marked;
pub mod narrow;
pub mod nm_narrow;
