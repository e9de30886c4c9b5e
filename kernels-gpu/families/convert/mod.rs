//! Conversions of matrices between formats, and work lists.

pub mod abi;

#[cfg(any(module = "convert", feature = "cuda_std"))]
mod convert;
#[cfg(any(module = "entries", feature = "cuda_std"))]
mod entries;
#[cfg(any(module = "convert", feature = "cuda_std"))]
mod expand;
#[cfg(any(module = "convert", feature = "cuda_std"))]
mod lists;
#[cfg(any(module = "convert", feature = "cuda_std"))]
mod prune;
#[cfg(any(module = "convert", module = "entries", feature = "cuda_std"))]
mod radix;
#[cfg(any(module = "convert", feature = "cuda_std"))]
mod scatter;
#[cfg(any(module = "convert", feature = "cuda_std"))]
mod slicing;
