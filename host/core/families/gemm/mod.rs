//! Products of block and dense matrices on Tensor Cores. The kernels are in `kernels-gpu/families/gemm`.

pub(crate) mod cost;
pub(crate) mod dense;
pub(crate) mod dense_csr;
pub(crate) mod nm;
pub(crate) mod offers;
pub(crate) mod panel;
pub(crate) mod strips;
