//! Where files lie, and what is in them.
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
    writeln!(
        std::io::stderr(),
        "skipped: no {} (set EINSPARSE_DATA)",
        path.display()
    )
    .ok();
    None
}

pub fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

pub fn sparse<T: Element>(loaded: Loaded<T>) -> AnySparse<T> {
    let Loaded::Sparse(sparse) = loaded else {
        panic!("a dense matrix")
    };
    sparse
}
