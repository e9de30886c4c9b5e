//! Atomic replacement of files: a write leaves the old file or the complete new one.

use std::fs::{self, File};
use std::io::{BufWriter, Error, Result, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::Fault;
use crate::FormatError;

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
    // Only the path is kept: writers open the file themselves.
    let beside = beside(&target)?.into_temp_path();
    if let Some(old) = old {
        fs::set_permissions(&beside, old.permissions())?;
    }
    let written = write(&beside)?;
    beside.persist(&target).map_err(|failed| failed.error)?;
    Ok(written)
}

/// Replaces a file with the output of `write`. An error names the file.
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

/// Creates a temporary file in the directory of another file. It has the extension of that file, because some writers choose
/// the format by it, and the permissions of a new file.
fn beside(target: &Path) -> Result<NamedTempFile> {
    let extension = target.extension().map(|e| format!(".{}", e.to_string_lossy()));
    let extension = extension.unwrap_or_default();
    let mut builder = tempfile::Builder::new();
    builder.prefix(".einsparse-").suffix(&extension);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
    builder.tempfile_in(folder.unwrap_or(Path::new(".")))
}
