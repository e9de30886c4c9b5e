//! The kernels of einsparse: machine code for `sm_90a`, module by module,
//! packed with zstd. `cargo xtask prebuild` makes them from the sources in `einsparse-kernels`; `--verify` compares.

#![no_std]

/// Folder of the modules.
pub const FOLDER: &str = env!("CARGO_MANIFEST_DIR");
