//! Block-sparse or dense A times a dense matrix on Tensor Cores.

pub mod abi;

#[cfg(any(module = "block", feature = "cuda_std"))]
mod block;
#[cfg(any(
    module = "dense",
    module = "dense_live",
    module = "dense_conv",
    module = "dense_csr",
    feature = "cuda_std"
))]
mod dense;
#[cfg(any(module = "nm", module = "nm_narrow", feature = "cuda_std"))]
mod nm;
#[cfg(any(module = "wgmma", module = "narrow", module = "nm_narrow", feature = "cuda_std"))]
mod wgmma;
