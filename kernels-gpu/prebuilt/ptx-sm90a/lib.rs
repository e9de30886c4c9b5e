//! The kernels of einsparse: PTX for `sm_90a`, which drivers compile that are older than the machine code, module by
//! module, packed with zstd. `cargo xtask prebuild` makes them from the sources in `einsparse-kernels`; `--verify`
//! compares.

#![no_std]

/// Folder of the modules.
pub const FOLDER: &str = env!("CARGO_MANIFEST_DIR");
