//! Baselines.

pub mod cublas;
pub mod cublaslt;
pub mod cudnn;
pub mod cusparse;
pub mod cusparselt;
pub mod fused;
pub mod sddmm;
pub mod torch;
