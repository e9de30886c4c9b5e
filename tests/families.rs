//! Tests by family, under the names of `kernels-gpu/families`: what the kernels of a family compute, and the operators
//! and plans that take them.

// A family may have the name of its first module.
#![allow(clippy::module_inception)]

mod attention;
mod conv2d;
mod convert;
mod discover;
mod elementwise;
pub mod gather_gemm;
mod gemm;
mod optimizer;
mod sddmm;
mod softmax;
mod spmm;
mod tensor;
mod tutorial;
