//! The kernels of docs/levels.md: one product, written seven times.

pub mod abi;

#[cfg(any(module = "levels", feature = "cuda_std"))]
mod levels;
