//! Device kernels of einsparse. Built for `nvptx64-nvidia-cuda` this crate is the kernels; built for
//! the host it is the header both sides share: [`abi`], [`table`] and [`frag`], and how modules are [`packed`].

#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch, stdarch_nvptx))]

// Ahead of the families, whose bodies use its macros.
#[cfg(any(target_arch = "nvptx64", feature = "cuda_std"))]
#[macro_use]
mod device;

pub mod abi;
pub mod families;
pub mod frag;
#[cfg(not(target_arch = "nvptx64"))]
pub mod packed;
pub mod table;

/// Folder of this crate's sources, from which the device modules are compiled.
#[cfg(not(target_arch = "nvptx64"))]
pub const SOURCE_DIR: &str = env!("CARGO_MANIFEST_DIR");
