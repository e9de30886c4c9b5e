//! SciPy's sparse `.npz` (`scipy.sparse.save_npz`): a zip archive of `.npy` members, CSR, CSC, COO and BSR,
//! compressed or not.

mod sparse;
mod write;

pub use write::{write_npz, write_npz_compressed};

use super::{
    Fault, bytes,
    limits::{Budget, Limits},
    npy::{Array, Wrong},
};
use crate::{AnySparse, Element, FormatError};
use std::{io::Cursor, path::Path};
use zip::{ZipArchive, read::ZipFile, result::ZipError};

/// Reads a SciPy sparse archive in the format it holds.
///
/// Indices of a row that do not ascend are sorted with their values, and entries at one place are **added up**, as
/// SciPy does. Floats, integers and booleans are taken as values; object arrays are refused, never unpickled.
///
/// # Errors
/// [`FormatError::Io`] with the member, or `archive`, and the reason.
pub fn read_npz<T: Element>(path: impl AsRef<Path>) -> Result<AnySparse<T>, FormatError> {
    read_npz_within(path, Limits::default())
}

/// [`read_npz`] with another limit of memory: an archive of a few MB may hold many GB of zeros.
///
/// # Errors
/// As [`read_npz`].
pub fn read_npz_within<T: Element>(
    path: impl AsRef<Path>,
    limits: Limits,
) -> Result<AnySparse<T>, FormatError> {
    let path = path.as_ref();
    read_npz_from_within(
        &bytes::read(path, limits, &mut |_, _| {})?,
        &path.display().to_string(),
        limits,
    )
}

/// [`read_npz`] from memory; `name` stands for the file in messages.
///
/// # Errors
/// As [`read_npz`].
pub fn read_npz_from<T: Element>(bytes: &[u8], name: &str) -> Result<AnySparse<T>, FormatError> {
    read_npz_from_within(bytes, name, Limits::default())
}

/// [`read_npz_from`] with another limit of memory.
///
/// # Errors
/// As [`read_npz`].
pub fn read_npz_from_within<T: Element>(
    bytes: &[u8],
    name: &str,
    limits: Limits,
) -> Result<AnySparse<T>, FormatError> {
    let budget = Budget::new(limits, bytes.len());
    let mut archive = Archive::open(bytes, budget).map_err(|fault| fault.at(name))?;
    sparse::read(&mut archive, name)
}

/// The members of an archive by name, without `.npy`.
struct Archive<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
    budget: Budget,
}

impl<'a> Archive<'a> {
    fn open(bytes: &'a [u8], budget: Budget) -> Result<Self, Fault> {
        let zip = ZipArchive::new(Cursor::new(bytes)).map_err(|error| {
            let found = memchr::memmem::rfind(bytes, b"PK\x05\x06").is_some();
            let reason = if found {
                error.to_string()
            } else {
                "no end of central directory: cut off, or not a zip file".to_owned()
            };
            Fault::member("archive", reason)
        })?;
        Ok(Self { zip, budget })
    }

    /// What `read` makes of a member.
    fn member<R>(
        &mut self,
        name: &str,
        read: impl FnOnce(Array<ZipFile<'_, Cursor<&'a [u8]>>>, &mut Budget) -> Result<R, Wrong>,
    ) -> Result<R, Fault> {
        let file = match self.zip.by_name(&format!("{name}.npy")) {
            Ok(file) => file,
            Err(ZipError::FileNotFound) => return Err(Fault::member(name, "member missing")),
            Err(error) => return Err(Fault::member(name, error.to_string())),
        };
        let array = Array::open(file).map_err(|reason| (None, reason));
        let read = array.and_then(|array| read(array, &mut self.budget));
        read.map_err(|wrong| match wrong {
            (Some(position), reason) => Fault::member(format!("{name}[{position}]"), reason),
            (None, reason) => Fault::member(name, reason),
        })
    }
}
