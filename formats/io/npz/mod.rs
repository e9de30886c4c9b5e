//! SciPy's sparse `.npz` (`scipy.sparse.save_npz`): a zip archive of `.npy` members with CSR, CSC, COO, BSR or DIA,
//! deflated or stored.

mod coords;
mod diagonals;
mod rows;
mod sparse;
mod write;

pub(super) use rows::{count_rows, read_rows};
pub use write::{write_npz, write_npz_compressed};

use super::{
    Fault, bytes,
    limits::{Budget, Limits},
    npy::{Array, Wrong},
    quote,
};
use crate::error::*;
use crate::{AnySparse, Element};
use std::{
    fs::File,
    io::{self, Cursor, Read, Seek, SeekFrom},
    ops::Range,
    path::Path,
};
use zip::{
    CompressionMethod, ZipArchive,
    read::{ZipFile, ZipFileSeek},
    result::ZipError,
};

/// Reads a SciPy sparse archive in its own format: CSR, CSC, COO of any order, BSR, and DIA as COO without its zeros.
///
/// Unsorted indices of a row are sorted with their values, and duplicate entries are **summed**, as in SciPy. Values
/// may be floats, integers or booleans. Object arrays are an error and are never unpickled. Members may be stored or
/// deflated, as NumPy writes them. For bzip2, LZMA and Zstandard the error names the method.
///
/// # Errors
/// Returns [`FormatError::Io`] with the member, or `archive`, and the reason.
pub fn read_npz<T: Element>(path: impl AsRef<Path>) -> Result<AnySparse<T>> {
    read_npz_within(path, Limits::default())
}

/// [`read_npz`] with another memory limit. An archive of a few MB may contain many GB of zeros.
pub fn read_npz_within<T: Element>(path: impl AsRef<Path>, limits: Limits) -> Result<AnySparse<T>> {
    bytes::read_as(path.as_ref(), limits, |bytes, name| read_npz_from_within(bytes, name, limits))
}

/// [`read_npz`] from memory. Messages use `name` as the file path.
pub fn read_npz_from<T: Element>(bytes: &[u8], name: &str) -> Result<AnySparse<T>> {
    read_npz_from_within(bytes, name, Limits::default())
}

/// [`read_npz_from`] with another memory limit.
///
/// # Errors
/// See [`read_npz`].
pub fn read_npz_from_within<T: Element>(
    bytes: &[u8],
    name: &str,
    limits: Limits,
) -> Result<AnySparse<T>> {
    let budget = Budget::new(limits, bytes.len());
    let mut archive = Archive::open(Cursor::new(bytes), budget).map_err(|fault| fault.at(name))?;
    sparse::read(&mut archive, name)
}

/// Name of the type of the values if it is a floating-point type.
pub(super) fn float_type(file: &File) -> Option<&'static str> {
    let mut archive = Archive::open(file, Budget::new(Limits::default(), 0)).ok()?;
    let found = archive.member("data", |data, _| Ok(data.float_type()));
    found.ok().flatten()
}

/// Archive whose members are read by name, without `.npy`.
struct Archive<R> {
    zip: ZipArchive<R>,
    budget: Budget,
}

/// Member that is read from its start, or an uncompressed member that supports seeking.
enum Member<'a, R: Read> {
    Stream(ZipFile<'a, R>),
    Stored(ZipFileSeek<'a, R>),
}

impl<R: Read> Read for Member<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Stream(file) => file.read(buffer),
            Self::Stored(file) => file.read(buffer),
        }
    }
}

impl<R: Read + Seek> Member<'_, R> {
    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        match self {
            Self::Stored(file) => file.seek_relative(bytes as i64),
            Self::Stream(file) => {
                let skipped = io::copy(&mut file.take(bytes), &mut io::sink())?;
                if skipped < bytes {
                    let reason = format!("cut off: {skipped} of {bytes} bytes before these");
                    return Err(io::Error::other(reason));
                }
                Ok(())
            }
        }
    }
}

impl<R: Read + Seek + Clone> Archive<R> {
    fn open(from: R, budget: Budget) -> Result<Self, Fault> {
        let zip = ZipArchive::new(from.clone()).map_err(|error| {
            let reason = if has_end(from).unwrap_or(true) {
                error.to_string()
            } else {
                "no end of central directory: cut off, or not a zip file".to_owned()
            };
            Fault::member("archive", reason)
        })?;
        Ok(Self { zip, budget })
    }

    /// Calls `read` with a member.
    fn member<X>(
        &mut self,
        name: &str,
        read: impl FnOnce(Array<Member<'_, R>>, &mut Budget) -> Result<X, Wrong>,
    ) -> Result<X, Fault> {
        self.part(name, None, read)
    }

    /// Calls `read` with the given elements of a member, or with all of them (`None`). The checksum is compared only
    /// for all elements.
    fn part<X>(
        &mut self,
        name: &str,
        elements: Option<Range<usize>>,
        read: impl FnOnce(Array<Member<'_, R>>, &mut Budget) -> Result<X, Wrong>,
    ) -> Result<X, Fault> {
        let file = format!("{name}.npy");
        self.check_method(name, &file)?;
        let stored = |file: ZipFile<'_, R>| file.compression() == CompressionMethod::Stored;
        let member = if elements.is_some() && self.zip.by_name(&file).is_ok_and(stored) {
            self.zip.by_name_seek(&file).map(Member::Stored)
        } else {
            self.zip.by_name(&file).map(Member::Stream)
        };
        let member = match member {
            Ok(member) => member,
            Err(error) => return Err(Fault::member(name, error.to_string())),
        };
        let first = elements.as_ref().map_or(0, |elements| elements.start);
        let array = Array::open(member).map_err(Wrong::from);
        let read = array.and_then(|mut array| {
            if let Some(elements) = elements.clone() {
                array.keep(elements, |member, bytes| member.skip(bytes))?;
            }
            read(array, &mut self.budget)
        });
        read.map_err(|Wrong(position, reason)| {
            let place = match (position, elements) {
                (Some(position), _) => format!("[{}]", first + position),
                (None, Some(range)) => format!("[{range:?}]"),
                (None, None) => String::new(),
            };
            Fault::member(format!("{name}{place}"), reason)
        })
    }

    fn has(&self, name: &str) -> bool {
        self.zip.index_for_name(&format!("{name}.npy")).is_some()
    }

    /// Describes the members of an archive of other arrays, such as those of `numpy.savez`.
    fn known(&self) -> String {
        const MOST: usize = 4;
        if self.has("format") && self.has("shape") {
            return String::new();
        }
        let names = self.zip.file_names().flatten();
        let names: Vec<String> = names.take(MOST).map(|n| quote(n.as_bytes())).collect();
        let more = if self.zip.len() > MOST { ", ..." } else { "" };
        let names = names.join(", ");
        format!(": `scipy.sparse.save_npz` writes `format` and `shape`, this has {names}{more}")
    }

    /// Returns an error for a missing member and for unsupported compression methods.
    fn check_method(&mut self, name: &str, file: &str) -> Result<(), Fault> {
        let Some(at) = self.zip.index_for_name(file) else {
            return Err(Fault::member(name, format!("member missing{}", self.known())));
        };
        let fault = |error: ZipError| Fault::member(name, error.to_string());
        let method = self.zip.by_index_raw(at).map_err(fault)?.compression();
        let method = match method {
            CompressionMethod::Stored | CompressionMethod::Deflated => return Ok(()),
            CompressionMethod::BZIP2 => "bzip2".to_owned(),
            CompressionMethod::LZMA => "LZMA".to_owned(),
            CompressionMethod::ZSTD => "Zstandard".to_owned(),
            other => format!("the method {other:?}"),
        };
        let reason = format!(
            "compressed by {method}, which is not read: load the file with NumPy, and write it with \
             numpy.savez_compressed"
        );
        Err(Fault::member(name, reason))
    }

    /// Checksum of the checksums of all members.
    fn checksum(&mut self) -> Result<u32, Fault> {
        let mut sum = flate2::Crc::new();
        for at in 0..self.zip.len() {
            let member = self.zip.by_index_raw(at);
            let member = member.map_err(|error| Fault::member("archive", error.to_string()))?;
            sum.update(&member.crc32().to_le_bytes());
        }
        Ok(sum.sum())
    }
}

/// Whether the end record of an archive is where it may be: before a comment of up to 64 KiB.
fn has_end(mut from: impl Read + Seek) -> io::Result<bool> {
    let length = from.seek(SeekFrom::End(0))?;
    from.seek(SeekFrom::Start(length.saturating_sub(22 + (1 << 16))))?;
    let mut tail = Vec::new();
    from.take(1 << 17).read_to_end(&mut tail)?;
    Ok(memchr::memmem::rfind(&tail, b"PK\x05\x06").is_some())
}
