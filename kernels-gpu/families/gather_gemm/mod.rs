//! Gathered rows times matrices: convolutions, experts, and products whose A has micro-tiles found at run time.

pub mod abi;

#[cfg(any(
    module = "conv",
    module = "conv_mma",
    module = "conv_grad",
    module = "conv_pairs",
    module = "conv_simt",
    feature = "cuda_std"
))]
mod conv;
#[cfg(any(module = "conv_grad", feature = "cuda_std"))]
mod conv_grad;
#[cfg(any(module = "conv_pairs", feature = "cuda_std"))]
mod conv_pairs;
#[cfg(any(module = "conv_simt", feature = "cuda_std"))]
mod conv_simt;
#[cfg(any(module = "conv_steps", feature = "cuda_std"))]
mod conv_steps;
#[cfg(any(module = "grouped", feature = "cuda_std"))]
mod grouped;
#[cfg(any(module = "grouped_grad", feature = "cuda_std"))]
mod grouped_grad;
#[cfg(any(
    module = "grouped_grad",
    module = "pit",
    module = "pit_conv",
    module = "pit_tf32",
    feature = "cuda_std"
))]
mod listed;
#[cfg(any(module = "pit", feature = "cuda_std"))]
mod pit;
#[cfg(any(module = "pit_conv", feature = "cuda_std"))]
mod pit_conv;
#[cfg(any(module = "pit_few", feature = "cuda_std"))]
mod pit_few;
#[cfg(any(module = "pit_tf32", feature = "cuda_std"))]
mod pit_tf32;
#[cfg(any(module = "pit", module = "pit_tf32", feature = "cuda_std"))]
mod pit_work;
