//! Paths of files, their contents, and random numbers to corrupt them. The data directory is `EINSPARSE_DATA`, or
//! `data/` in the project root; without it, tests that use it print one line.

use einsparse_formats::io::Loaded;
use einsparse_formats::{AnySparse, Element};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Path of a file or directory of the real data; `None` after a printed line if it does not exist.
pub fn data(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("EINSPARSE_DATA").map(PathBuf::from);
    let root = root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../data"));
    let path = root.join(name);
    if path.exists() {
        return Some(path);
    }
    // Writes to the stream directly: the harness captures the output of the print macros.
    writeln!(std::io::stderr(), "skipped: no {} (set EINSPARSE_DATA)", path.display()).ok();
    None
}

pub fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

pub fn sparse<T: Element>(loaded: Loaded<T>) -> AnySparse<T> {
    let Loaded::Sparse(sparse) = loaded else { panic!("a dense matrix") };
    sparse
}

/// A small random number generator, so that tests of readers do not depend on the tested code.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }
}
