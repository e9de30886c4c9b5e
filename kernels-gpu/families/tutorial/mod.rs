//! Kernels of docs/levels.md: one product, implemented seven times.

pub mod abi;

#[cfg(any(module = "levels", feature = "cuda_std"))]
mod levels;
