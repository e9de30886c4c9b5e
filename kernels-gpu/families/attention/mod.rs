//! SDDMM, softmax and SpMM in one kernel; the masks that it reads; one query of each head over a cache.

pub mod abi;

#[cfg(any(module = "attention", feature = "cuda_std"))]
mod attention;
#[cfg(any(module = "decode", feature = "cuda_std"))]
mod decode;
#[cfg(any(module = "masks", feature = "cuda_std"))]
mod key_blocks;
#[cfg(any(module = "attention", module = "decode", feature = "cuda_std"))]
mod lanes;
#[cfg(any(module = "masks", feature = "cuda_std"))]
mod masks;
