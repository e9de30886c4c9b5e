//! Einsums over sparse tensors on NVIDIA GPUs, device kernels and host both in Rust.

pub use einsparse_formats as formats;
pub use einsparse_kernels as kernels;

pub mod cpu;
pub mod driver;
pub mod einsum;
pub mod error;
pub mod indirect;
pub mod module;

pub use error::{Error, Result};
