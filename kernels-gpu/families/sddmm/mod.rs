//! Products of dense matrices at the nonzeros of a pattern (SDDMM).

pub mod abi;

#[cfg(any(module = "pit_sampled", feature = "cuda_std"))]
mod pit_sampled;
#[cfg(any(module = "sampled", feature = "cuda_std"))]
mod sampled;
#[cfg(any(module = "sddmm", module = "sddmm_staged", feature = "cuda_std"))]
mod sddmm;
#[cfg(any(module = "sddmm_staged", feature = "cuda_std"))]
mod sddmm_staged;
#[cfg(any(module = "sddmm_tiles", feature = "cuda_std"))]
mod sddmm_tiles;
#[cfg(any(module = "sampled", module = "sddmm_tiles", feature = "cuda_std"))]
mod stages;
