//! SciPy's sparse `.npz` (`scipy.sparse.save_npz`): a zip archive of `.npy` members, CSR, CSC, COO and BSR,
//! compressed or not.

mod sparse;
mod write;

pub use write::{write_npz, write_npz_compressed};

use super::{Fault, bytes, npy::Array};
use crate::{AnySparse, Element, FormatError};
use std::{io::Cursor, path::Path};
use zip::{ZipArchive, result::ZipError};

/// Reads a SciPy sparse archive in the format it holds.
///
/// Indices of a row that do not ascend are sorted with their values, and entries at one place are **added up**, as
/// SciPy does. Floats, integers and booleans are taken as values; object arrays are refused, never unpickled.
///
/// # Errors
/// [`FormatError::Io`] with the member, or `archive`, and the reason.
pub fn read_npz<T: Element>(path: impl AsRef<Path>) -> Result<AnySparse<T>, FormatError> {
    let path = path.as_ref();
    read_npz_from(
        &bytes::read(path, &mut |_, _| {})?,
        &path.display().to_string(),
    )
}

/// [`read_npz`] from memory; `name` stands for the file in messages.
///
/// # Errors
/// As [`read_npz`].
pub fn read_npz_from<T: Element>(bytes: &[u8], name: &str) -> Result<AnySparse<T>, FormatError> {
    let mut archive = Archive::open(bytes).map_err(|fault| fault.at(name))?;
    sparse::read(&mut archive, name)
}

/// The members of an archive by name, without `.npy`.
struct Archive<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
}

impl<'a> Archive<'a> {
    fn open(bytes: &'a [u8]) -> Result<Self, Fault> {
        let zip = ZipArchive::new(Cursor::new(bytes)).map_err(|error| {
            let found = memchr::memmem::rfind(bytes, b"PK\x05\x06").is_some();
            let reason = if found {
                error.to_string()
            } else {
                "no end of central directory: cut off, or not a zip file".to_owned()
            };
            Fault::member("archive", reason)
        })?;
        Ok(Self { zip })
    }

    /// None if it is missing.
    fn optional(&mut self, name: &str) -> Result<Option<Array>, Fault> {
        let file = match self.zip.by_name(&format!("{name}.npy")) {
            Ok(file) => file,
            Err(ZipError::FileNotFound) => return Ok(None),
            Err(error) => return Err(Fault::member(name, error.to_string())),
        };
        Array::read(file)
            .map(Some)
            .map_err(|reason| Fault::member(name, reason))
    }

    fn member(&mut self, name: &str) -> Result<Array, Fault> {
        self.optional(name)?
            .ok_or_else(|| Fault::member(name, "member missing"))
    }

    fn indices(&mut self, name: &str) -> Result<Vec<i128>, Fault> {
        self.member(name)?
            .indices()
            .map_err(|reason| Fault::member(name, reason))
    }
}
