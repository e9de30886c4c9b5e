//! Device kernels of einsparse. Built for `nvptx64-nvidia-cuda`, this crate contains the kernels. Built for the host,
//! it is the interface of host and device: [`abi`], [`table`] and [`frag`]. The format of packed modules is in
//! [`packed`].

#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch, stdarch_nvptx))]

// Before the families: their bodies use its macros.
#[cfg(any(target_arch = "nvptx64", feature = "cuda_std"))]
#[macro_use]
mod device;

pub mod abi;
pub mod families;
pub mod frag;
#[cfg(not(target_arch = "nvptx64"))]
pub mod packed;
pub mod table;

/// Directory of this crate's sources, from which the device modules are compiled.
#[cfg(not(target_arch = "nvptx64"))]
pub const SOURCE_DIR: &str = env!("CARGO_MANIFEST_DIR");
