//! The benches of each family of kernels, under the family's name.

pub mod attention;
pub mod convert;
pub mod discover;
pub mod gather_gemm;
pub mod gemm;
pub mod sddmm;
pub mod softmax;
pub mod spmm;
pub mod tensor;
pub mod tutorial;
