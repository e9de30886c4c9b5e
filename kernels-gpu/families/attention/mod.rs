//! SDDMM, softmax and SpMM in one kernel, and the masks that it reads.

pub mod abi;
mod rows;

#[cfg(any(module = "attention", feature = "cuda_std"))]
mod attention;
#[cfg(any(module = "masks", feature = "cuda_std"))]
mod masks;
