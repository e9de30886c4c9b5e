//! Writing that leaves the old file or the new one, never half of it.

use std::fs::{self, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Lets `write` make a file beside `path` and puts it in the place of `path` once it is whole. Where `write` fails, or
/// the program is killed, what was at `path` is still there. A link stays a link, also one to a file that does not exist yet; pipes and devices are written
/// directly.
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
/// What `write` returns; an I/O error when the file beside cannot be made or moved.
pub fn replace_file<R, E: From<Error>>(
    path: impl AsRef<Path>,
    write: impl FnOnce(&Path) -> std::result::Result<R, E>,
) -> std::result::Result<R, E> {
    let path = path.as_ref();
    let old = fs::metadata(path).ok();
    if old.as_ref().is_some_and(|old| !old.is_file()) {
        return write(path);
    }
    // The file at the end of the link is replaced or made, and the link stays.
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

/// Where links lead that end at no file yet.
fn end_of_links(path: &Path) -> Result<PathBuf> {
    /// As Linux follows.
    const MAX_LINKS: usize = 40;
    let mut at = path.to_path_buf();
    for _ in 0..=MAX_LINKS {
        match fs::read_link(&at) {
            Ok(next) => at = at.with_file_name("").join(next),
            // No link, or nothing at all.
            Err(_) => return Ok(at),
        }
    }
    let reason = format!("more than {MAX_LINKS} symbolic links follow each other");
    Err(Error::other(format!("{}: {reason}", path.display())))
}

/// A new file in the folder of another. Removed unless it was renamed.
struct Beside(PathBuf);

impl Beside {
    fn new(target: &Path) -> Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let extension = target.extension().map(|e| e.to_string_lossy());
        loop {
            let own = COUNT.fetch_add(1, Ordering::Relaxed);
            // Some writers choose by the extension.
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
        // After the rename there is none.
        let _ = fs::remove_file(&self.0);
    }
}
