//! Benches of each family of kernels, in a module with the family's name.

pub mod attention;
pub mod conv2d;
pub mod convert;
pub mod discover;
pub mod elementwise;
pub mod gather_gemm;
pub mod gemm;
pub mod optimizer;
pub mod sddmm;
pub mod softmax;
pub mod spmm;
pub mod tensor;
pub mod tutorial;

use crate::operations::Entry;

/// Operations of each family, in the order of the record.
pub const OPERATIONS: &[&[Entry]] = &[
    spmm::OPERATIONS,
    gemm::OPERATIONS,
    gather_gemm::OPERATIONS,
    sddmm::OPERATIONS,
    softmax::OPERATIONS,
    attention::OPERATIONS,
    tensor::OPERATIONS,
    convert::OPERATIONS,
    discover::OPERATIONS,
    optimizer::OPERATIONS,
    elementwise::OPERATIONS,
    conv2d::OPERATIONS,
    tutorial::OPERATIONS,
];
