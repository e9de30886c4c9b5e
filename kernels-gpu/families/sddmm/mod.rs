//! Products of dense matrices at the nonzeros of a pattern (SDDMM).

pub mod abi;

#[cfg(any(module = "pit_sampled", module = "pit_sampled_mma", feature = "cuda_std"))]
mod pit_sampled;
#[cfg(any(module = "sampled", module = "sampled_mma", feature = "cuda_std"))]
mod sampled;
#[cfg(any(
    module = "sddmm",
    module = "sddmm_staged",
    module = "sddmm_staged_99k",
    module = "sddmm_narrow",
    feature = "cuda_std"
))]
mod sddmm;
#[cfg(any(module = "sddmm_staged", module = "sddmm_staged_99k", feature = "cuda_std"))]
mod sddmm_staged;
#[cfg(any(module = "sddmm_tiles", module = "sddmm_tiles_mma", feature = "cuda_std"))]
mod sddmm_tiles;
