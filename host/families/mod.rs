//! By family what can run (`offers`) and what launches it: lists that a kernel reads, how large its grid is, its params; of some also what
//! it is predicted to cost, and the same on the CPU. The folders are those of `kernels-gpu/families`.

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

use crate::offer::Offers;

/// Who has kernels for products of two matrices.
pub(crate) const PRODUCTS: &[Offers] = &[
    spmm::offers::offers,
    gemm::offers::offers,
    gather_gemm::offers::pit::offers,
    gather_gemm::offers::pit::right::offers,
];

/// For other expressions of one structure.
pub(crate) const STRUCTURES: &[Offers] = &[
    tensor::offers::rows::offers,
    tensor::offers::dots::offers,
    tensor::offers::tensor_product::offers,
    gather_gemm::offers::convolution::offers,
];

/// For any expression.
pub(crate) const ANY: &[Offers] = &[tensor::offers::einsum::offers];
