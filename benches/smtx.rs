//! Directory of real data, and the matrices of the Deep Learning Matrix Collection in it.

use std::path::{Path, PathBuf};

/// Directory EINSPARSE_DATA, by default `data/`.
pub fn data_folder() -> PathBuf {
    std::env::var_os("EINSPARSE_DATA").map_or_else(|| PathBuf::from("data"), PathBuf::from)
}

/// The `.smtx` files below a directory, sorted by path.
pub fn files(root: &Path) -> Vec<PathBuf> {
    let mut folders = vec![root.to_path_buf()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "smtx") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
