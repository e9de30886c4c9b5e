//! Detection of nonzeros at run time: micro-tiles, channels, routes to experts, rows of sequences.

pub mod abi;

#[cfg(any(module = "detect", feature = "cuda_std"))]
mod channels;
#[cfg(any(module = "detect", feature = "cuda_std"))]
mod detect;
#[cfg(any(module = "detect", feature = "cuda_std"))]
mod elements;
#[cfg(any(module = "live_rows", feature = "cuda_std"))]
mod live_rows;
#[cfg(any(module = "route", feature = "cuda_std"))]
mod route;
#[cfg(any(module = "route", feature = "cuda_std"))]
mod router;
#[cfg(any(module = "detect", module = "live_rows", feature = "cuda_std"))]
mod sequences;
#[cfg(any(module = "detect", feature = "cuda_std"))]
mod transpose;
