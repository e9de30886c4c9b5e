//! Softmax of the nonzeros of each row, and its gradient.

pub mod abi;

#[cfg(any(module = "softmax", feature = "cuda_std"))]
mod softmax;
