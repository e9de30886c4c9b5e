//! Atomic replacement of files: a write leaves the old file or the complete new one.

use super::Fault;
use crate::FormatError;
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls `write` with a temporary file next to `path`, and renames that file to `path` when it is complete. If `write`
/// fails or the program is killed, the old file at `path` remains. Symbolic links are kept, also those to files that do
/// not exist yet. Pipes and devices are written directly.
///
/// ```
/// use einsparse_formats::io::replace_file;
///
/// let path = std::env::temp_dir().join("einsparse-replace.txt");
/// replace_file(&path, |beside| std::fs::write(beside, "old"))?;
/// let failed: std::io::Result<()> = replace_file(&path, |beside| {
///     std::fs::write(beside, "ne")?;
///     Err(std::io::Error::other("the disk is full"))
/// });
/// assert!(failed.is_err());
/// assert_eq!(std::fs::read_to_string(&path)?, "old");
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Returns the error of `write`, or an I/O error if the temporary file cannot be created or renamed.
pub fn replace_file<R, E: From<Error>>(
    path: impl AsRef<Path>,
    write: impl FnOnce(&Path) -> std::result::Result<R, E>,
) -> std::result::Result<R, E> {
    let path = path.as_ref();
    let old = fs::metadata(path).ok();
    if old.as_ref().is_some_and(|old| !old.is_file()) {
        return write(path);
    }
    // The target of the link is replaced or created, and the link is kept.
    let target = match &old {
        Some(_) => fs::canonicalize(path)?,
        None => end_of_links(path)?,
    };
    let beside = Beside::new(&target)?;
    if let Some(old) = old {
        fs::set_permissions(&beside.0, old.permissions())?;
    }
    let written = write(&beside.0)?;
    fs::rename(&beside.0, &target)?;
    Ok(written)
}

/// Replaces a file by what `write` writes. An error names the file.
pub(super) fn write_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> std::result::Result<(), FormatError> {
    let written = replace_file(path, |beside| {
        let mut out = BufWriter::with_capacity(1 << 16, File::create(beside)?);
        write(&mut out)?;
        out.flush()
    });
    written.map_err(|error: Error| Fault::from(error).at(&path.display().to_string()))
}

/// Target of a chain of links that ends at a path without a file.
fn end_of_links(path: &Path) -> Result<PathBuf> {
    /// Maximum number of links, as in Linux.
    const MAX_LINKS: usize = 40;
    let mut at = path.to_path_buf();
    for _ in 0..=MAX_LINKS {
        match fs::read_link(&at) {
            Ok(next) => at = at.with_file_name("").join(next),
            // The path is not a link, or does not exist.
            Err(_) => return Ok(at),
        }
    }
    let reason = format!("more than {MAX_LINKS} symbolic links follow each other");
    Err(Error::other(format!("{}: {reason}", path.display())))
}

/// Temporary file in the directory of another file. It is removed unless it was renamed.
struct Beside(PathBuf);

impl Beside {
    fn new(target: &Path) -> Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let extension = target.extension().map(|e| e.to_string_lossy());
        loop {
            let own = COUNT.fetch_add(1, Ordering::Relaxed);
            // Keep the extension, because some writers choose the format by it.
            let end = extension.as_ref().map_or(String::new(), |e| format!(".{e}"));
            let name = format!(".einsparse-{}-{own}{end}", std::process::id());
            let beside = target.with_file_name(name);
            match OpenOptions::new().write(true).create_new(true).open(&beside) {
                Ok(_) => return Ok(Self(beside)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // After a rename there is no file to remove.
        let _ = fs::remove_file(&self.0);
    }
}
