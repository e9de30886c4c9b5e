//! What launches the kernels, by family: lists that a kernel reads, how large its grid is, its params; of some also what it is predicted
//! to cost, and the same on the CPU. The folders are those of `kernels-gpu/families`.

// A family may have the name of its first module.
#![allow(clippy::module_inception)]

pub(crate) mod attention;
pub(crate) mod convert;
pub(crate) mod discover;
pub(crate) mod gather_gemm;
pub(crate) mod gemm;
pub(crate) mod sddmm;
pub(crate) mod softmax;
pub(crate) mod spmm;
pub(crate) mod tensor;
