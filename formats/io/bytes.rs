//! A file's bytes, read in blocks so that progress can be told, and the lines of a text with their numbers.

use super::{Fault, Progress};
use crate::FormatError;
use std::{fs::File, io::Read, path::Path};

const BLOCK: u64 = 16 << 20;

/// The whole file. The room reserved is what the file system says, and at most one block more than what is there.
pub(super) fn read(path: &Path, progress: Progress<'_>) -> Result<Vec<u8>, FormatError> {
    read_blocks(path, progress).map_err(|error| Fault::from(error).at(&path.display().to_string()))
}

fn read_blocks(path: &Path, progress: Progress<'_>) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX))
        .map_err(std::io::Error::other)?;
    loop {
        let read = file.by_ref().take(BLOCK).read_to_end(&mut bytes)?;
        progress(bytes.len() as u64, 2 * length.max(bytes.len() as u64));
        if read == 0 {
            return Ok(bytes);
        }
    }
}

/// The lines of a text from the start, counted from 1, without LF or CR LF.
pub(super) struct Lines<'a> {
    bytes: &'a [u8],
    /// Where the next line starts.
    pub(super) position: usize,
    /// Lines taken so far, which is the number of the last one.
    pub(super) number: u64,
}

impl<'a> Lines<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            position: 0,
            number: 0,
        }
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.position >= self.bytes.len() {
            return None;
        }
        let rest = &self.bytes[self.position..];
        let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        self.position += (end + 1).min(rest.len());
        self.number += 1;
        Some(rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]))
    }
}

/// The words of a line, between blanks.
pub(super) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
}
