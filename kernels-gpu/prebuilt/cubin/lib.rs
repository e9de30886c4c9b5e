//! The kernels of einsparse as machine code: a folder for each architecture, a file for each module,
//! packed with zstd. `cargo xtask prebuild` makes them from the sources in `einsparse-kernels`; `--verify` compares.

#![no_std]

/// Folder of the architectures' folders.
pub const FOLDER: &str = env!("CARGO_MANIFEST_DIR");
