//! Block-sparse or dense A times a dense matrix on Tensor Cores.

pub mod abi;

#[cfg(any(module = "block", feature = "cuda_std"))]
mod block;
#[cfg(any(
    module = "dense",
    module = "dense_mma",
    module = "dense_live",
    module = "dense_live_mma",
    module = "dense_conv",
    module = "dense_conv_mma",
    module = "dense_csr",
    module = "dense_csr_mma",
    feature = "cuda_std"
))]
mod dense;
#[cfg(any(
    module = "nm",
    module = "nm_mma",
    module = "nm_narrow",
    module = "nm_narrow_mma",
    feature = "cuda_std"
))]
mod nm;
#[cfg(any(
    module = "wgmma",
    module = "narrow",
    module = "nm_narrow",
    module = "nm_narrow_mma",
    module = "panel_mma",
    module = "narrow_mma",
    feature = "cuda_std"
))]
mod wgmma;
