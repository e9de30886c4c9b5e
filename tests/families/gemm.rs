//! Block-sparse and dense matrices on Tensor Cores.

mod batched;
mod dense;
mod dense_rows;
mod narrow;
mod nm;
mod nm_narrow;
mod orders;
