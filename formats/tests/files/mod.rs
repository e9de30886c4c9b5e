//! Where files lie, what is in them, and numbers to break them by.
//! The data folder is `EINSPARSE_DATA`, or `data/` in the project root; without it those tests print one line.

use einsparse_formats::io::Loaded;
use einsparse_formats::{AnySparse, Element};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A file or folder of the real data, or `None` and one line that says so.
pub fn data(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("EINSPARSE_DATA").map(PathBuf::from);
    let root = root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../data"));
    let path = root.join(name);
    if path.exists() {
        return Some(path);
    }
    // Straight to the stream: the harness swallows what the print macros say.
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

/// A small generator, so that tests of readers depend on nothing they test.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }
}
