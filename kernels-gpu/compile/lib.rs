//! Compiles the sources of `einsparse-kernels` to PTX and cubin. [`Kernels`] reuses the prebuilt modules of the project
//! whose sources are unchanged, and compiles the others. [`Toolchain`] finds (or installs) a rustc that can build
//! `core` for nvptx64. [`Ptxas`] finds or installs the assembler. [`resources`] parses the registers and spills that
//! ptxas reports.

mod cache;
mod debian;
mod device;
mod error;
mod manifest;
#[cfg(feature = "nvvm")]
mod nvvm;
mod prebuilt;
pub mod ptx;
mod ptxas;
pub mod resources;
mod spec;
mod toolchain;

pub use device::Backend;
pub use error::{Error, MissingToolchain};
pub use manifest::reports;
#[cfg(feature = "nvvm")]
pub use nvvm::Nvvm;
pub use prebuilt::{Code, Kernels, Module, inputs, keep, source_dir};
pub use ptxas::{Nvdisasm, Ptxas};
pub use spec::{Kernel, Spec, present};
pub use toolchain::{Origin, Toolchain};

use std::path::{Path, PathBuf};

/// Version of the build. Increment it with every change of the build, so that older modules are not reused.
const RECIPE: &str = "6";

/// Returns the build directory that contains `path` (`OUT_DIR`, or a program that cargo built). This is the outermost
/// ancestor with cargo's CACHEDIR.TAG, or else the parent of the `debug` or `release` directory.
///
/// Debug, release, test and documentation builds share it, and thus the toolchain, `core` and the modules.
pub fn target_dir(path: &Path) -> Option<PathBuf> {
    let tagged = path.ancestors().filter(|dir| dir.join("CACHEDIR.TAG").is_file()).last();
    let profile = || {
        let named = |dir: &&Path| dir.ends_with("debug") || dir.ends_with("release");
        path.ancestors().filter(named).last()?.parent()
    };
    tagged.or_else(profile).map(Path::to_path_buf)
}

/// Returns a file that changes when [`Toolchain::install`] or [`Ptxas::install`] installs into `target_dir`. An empty
/// file is created if it is missing, so that a build script can watch it.
pub fn stamp(target_dir: &Path) -> Result<PathBuf, Error> {
    let path = target_dir.join("toolchain").join("installed");
    if !path.is_file() {
        cache::write(&path, b"")?;
    }
    Ok(path)
}

/// Records an installation in [`stamp`].
fn note_installed(target_dir: &Path, what: &str) -> Result<(), Error> {
    let path = stamp(target_dir)?;
    let before = cache::read_to_string(&path)?;
    let kept =
        before.lines().filter(|line| !line.starts_with(what.split(' ').next().unwrap_or("")));
    let mut lines: Vec<&str> = kept.collect();
    lines.push(what);
    cache::write(&path, (lines.join("\n") + "\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::{cache, target_dir};

    #[test]
    fn build_folder_of_an_out_dir() {
        let folder = std::env::temp_dir().join(format!("einsparse-compile-{}", std::process::id()));
        let out = folder.join("target/debug/build/einsparse-0/out");
        assert_eq!(target_dir(&out), Some(folder.join("target")));
        cache::write(&folder.join("target/CACHEDIR.TAG"), b"").unwrap();
        let cross = folder.join("target/nvptx64-nvidia-cuda/release/build/einsparse-0/out");
        assert_eq!(target_dir(&cross), Some(folder.join("target")));
        cache::remove_dir(&folder).unwrap();
    }

    #[test]
    fn hashes_keep_parts_apart() {
        let hash = |parts: &[&str]| {
            parts.iter().fold(cache::Hash::new(), |hash, part| hash.add(part)).hex()
        };
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
        assert_eq!(hash(&["ab"]), hash(&["ab"]));
        assert_eq!(hash(&[]), "6c62272e07bb014262b821756295c58d");
    }
}
