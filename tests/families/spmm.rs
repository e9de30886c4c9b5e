//! A of single entries times a dense matrix.

mod batches;
mod bitmap;
mod bundles;
pub(super) mod int8;
mod relaxed;
mod sparse_linear;
mod staged;
mod transposed;
