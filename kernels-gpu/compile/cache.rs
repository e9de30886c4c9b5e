//! Files: content hashes, atomic writes, and a lock.

use crate::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// FNV-1a hash of 128 bits, the key of a module. It is equal on every platform and with every compiler.
pub(crate) struct Hash(u128);

impl Hash {
    pub(crate) fn new() -> Self {
        Hash(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    /// Adds one part and its length, so that the boundaries of parts count.
    pub(crate) fn add(mut self, part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        for &byte in (part.len() as u64).to_le_bytes().iter().chain(part) {
            self.0 =
                (self.0 ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
        self
    }

    pub(crate) fn hex(&self) -> String {
        format!("{:032x}", self.0)
    }
}

fn at(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    |error| Error::Io { path: path.to_path_buf(), reason: error.to_string() }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(at(path))
}

pub(crate) fn read_to_string(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(at(path))
}

pub(crate) fn create_dir(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(at(path))
}

pub(crate) fn remove_dir(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

pub(crate) fn remove_file(path: &Path) -> Result<(), Error> {
    fs::remove_file(path).map_err(at(path))
}

/// Returns the directories directly below `folder`.
pub(crate) fn folders(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(folder).map_err(at(folder))?;
    Ok(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect())
}

pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    fs::rename(from, to).map_err(at(to))
}

/// Writes to a temporary file next to `path` and renames it, so that a reader never sees a partial file.
pub(crate) fn write(path: &Path, content: &[u8]) -> Result<(), Error> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    create_dir(path.parent().unwrap_or(Path::new(".")))?;
    let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{unique}"));
    let beside = PathBuf::from(beside);
    fs::write(&beside, content).map_err(at(&beside))?;
    rename(&beside, path)
}

pub(crate) fn executable(path: &Path) -> Result<(), Error> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(at(path))?;
    }
    Ok(())
}

/// Acquires an exclusive lock on `<folder>/lock`, held until the file is dropped. It serializes device builds.
pub(crate) fn lock(folder: &Path) -> Result<fs::File, Error> {
    create_dir(folder)?;
    let path = folder.join("lock");
    let file = fs::File::create(&path).map_err(at(&path))?;
    file.lock().map_err(at(&path))?;
    Ok(file)
}

/// Returns all files below `folder` that `keep` accepts, as sorted relative paths. Directories are passed to `keep`
/// too.
pub(crate) fn files(folder: &Path, keep: &dyn Fn(&Path) -> bool) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(below) = open.pop() {
        let here = folder.join(&below);
        for entry in fs::read_dir(&here).map_err(at(&here))? {
            let entry = entry.map_err(at(&here))?;
            let path = below.join(entry.file_name());
            if !keep(&path) {
                continue;
            }
            match entry.path().is_dir() {
                true => open.push(path),
                false => found.push(path),
            }
        }
    }
    found.sort();
    Ok(found)
}
