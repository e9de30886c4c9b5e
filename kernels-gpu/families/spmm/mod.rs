//! Unstructured sparse A times a dense matrix.

pub mod abi;

#[cfg(any(module = "batched", feature = "cuda_std"))]
mod batched;
#[cfg(any(module = "bitmap", feature = "cuda_std"))]
mod bitmap;
#[cfg(any(module = "staged", module = "sell", feature = "cuda_std"))]
mod chunk;
#[cfg(any(module = "bitmap", module = "sell", feature = "cuda_std"))]
mod parts;
#[cfg(any(module = "sell", feature = "cuda_std"))]
mod sell;
#[cfg(any(module = "spmm", module = "batched", feature = "cuda_std"))]
mod spmm;
#[cfg(any(module = "staged", feature = "cuda_std"))]
mod staged;
#[cfg(any(module = "vectors", feature = "cuda_std"))]
mod vectors;
#[cfg(any(module = "vectors", feature = "cuda_std"))]
mod vectors_narrow;
