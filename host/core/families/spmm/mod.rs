//! Products of unstructured A by a dense matrix. The kernels are in `kernels-gpu/families/spmm`.

pub(crate) mod batched;
pub(crate) mod bitmap;
pub(crate) mod cost;
pub(crate) mod gather;
pub(crate) mod offers;
pub(crate) mod sell;
pub(crate) mod slabs;
pub(crate) mod staged;
pub(crate) mod vectors;
