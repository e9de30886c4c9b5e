//! A with unstructured nonzeros times a dense matrix.

mod batches;
mod bitmap;
mod bundles;
mod host_spmm;
pub(super) mod int8;
mod linear;
mod slabs;
mod staged;
mod transposed;
