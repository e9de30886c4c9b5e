//! Reading of files in blocks, with progress reports, and iteration over numbered lines of text.

use super::{Fault, Limits, Progress};
use crate::error::*;
use flate2::Crc;
use std::{
    fs::File,
    io::{Read, Take},
    path::Path,
};

const BLOCK: u64 = 16 << 20;

/// Reads a whole file. The length of a file without a size (a pipe, a device) is limited by the limit for an empty
/// input.
pub(super) fn read(path: &Path, limits: Limits, progress: Progress<'_>) -> Result<Vec<u8>> {
    let read = File::open(path).map_err(Fault::from).and_then(|file| {
        let facts = file.metadata()?;
        // Generated files (/proc) report a length of 0.
        let length = (facts.is_file() && facts.len() > 0).then_some(facts.len());
        read_blocks(file, length, limits.of(0), progress)
    });
    read.map_err(|fault| fault.at(&path.display().to_string()))
}

/// Reads a whole file, and parses it with `parse(bytes, path)`.
pub(super) fn read_as<X>(
    path: &Path,
    limits: Limits,
    parse: impl FnOnce(&[u8], &str) -> Result<X>,
) -> Result<X> {
    parse(&read(path, limits, &mut |_, _| {})?, &path.display().to_string())
}

fn read_blocks(
    mut from: impl Read,
    length: Option<u64>,
    limit: u64,
    progress: Progress<'_>,
) -> Result<Vec<u8>, Fault> {
    let most = length.unwrap_or(limit);
    let mut bytes = Vec::new();
    let room = |error| Fault::from(std::io::Error::other(error));
    let known = usize::try_from(length.unwrap_or(0)).unwrap_or(usize::MAX);
    bytes.try_reserve_exact(known).map_err(room)?;
    loop {
        let left = most - bytes.len() as u64;
        let read = from.by_ref().take(BLOCK.min(left)).read_to_end(&mut bytes)?;
        let done = bytes.len() as u64;
        progress(done, 2 * length.unwrap_or(done));
        if read > 0 && left > read as u64 {
            continue;
        }
        let over = left == read as u64 && from.by_ref().take(1).read_to_end(&mut Vec::new())? > 0;
        return match length {
            Some(length) if over || done < length => Err(changed(length, done, over)),
            None if over => Err(Fault::whole(format!(
                "longer than {limit} bytes, the limit for what has no size; `io::Limits` or `--memory` raises it"
            ))),
            _ => Ok(bytes),
        };
    }
}

fn changed(length: u64, done: u64, more: bool) -> Fault {
    Fault::whole(format!(
        "the file changed while it was read: it had {length} bytes, then {}",
        if more { "more".to_owned() } else { done.to_string() }
    ))
}

/// Number of bytes of a piece of [`Pieces`].
pub(super) const PIECE: usize = 4 << 20;

/// Text file that is read in pieces of about [`PIECE`] bytes, which end at line ends. The whole text is never in
/// memory.
pub(super) struct Pieces<R> {
    from: Take<R>,
    length: u64,
    /// Maximum length of a line.
    limit: u64,
    text: Vec<u8>,
    /// Bytes of `text` that the last call returned.
    given: usize,
    done: u64,
    checksum: Crc,
}

impl<R: Read> Pieces<R> {
    /// Reads a file of `length` bytes.
    pub(super) fn new(from: R, length: u64, limit: u64) -> Self {
        Self {
            // One more byte, to detect a file that has grown.
            from: from.take(length.saturating_add(1)),
            length,
            limit,
            text: Vec::new(),
            given: 0,
            done: 0,
            checksum: Crc::new(),
        }
    }

    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, Fault> {
        self.text.drain(..self.given);
        loop {
            let held = self.text.len();
            let mut piece = self.from.by_ref().take(PIECE as u64);
            let read = piece.read_to_end(&mut self.text)?;
            self.checksum.update(&self.text[held..]);
            self.done += read as u64;
            if read < PIECE {
                if self.done != self.length {
                    let more = self.done > self.length;
                    return Err(changed(self.length, self.done, more));
                }
                self.given = self.text.len();
                break;
            }
            if let Some(at) = memchr::memrchr(b'\n', &self.text[held..]) {
                self.given = held + at + 1;
                break;
            }
            if self.text.len() as u64 > self.limit {
                return Err(Fault::whole(format!(
                    "a line is longer than {} bytes at byte {}, which `io::Limits` raises",
                    self.limit, self.done
                )));
            }
        }
        Ok((self.given > 0).then(|| &self.text[..self.given]))
    }

    /// Marks only the first `used` bytes of the last piece as used. The next piece starts after them.
    pub(super) fn take_back(&mut self, used: usize) {
        self.given = used;
    }

    /// Checksum of all bytes that were read.
    pub(super) fn checksum(&self) -> u32 {
        self.checksum.sum()
    }
}

/// Iterator over the lines of a text, counted from 1, without LF or CR LF.
pub(super) struct Lines<'a> {
    bytes: &'a [u8],
    /// Start of the next line.
    pub(super) position: usize,
    /// Number of lines returned so far, which is the number of the last line.
    pub(super) number: u64,
}

impl<'a> Lines<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0, number: 0 }
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

/// Iterator over the words of a line, separated by whitespace.
pub(super) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::read_blocks;

    /// Result of reading `text` from a file whose size is reported as `length` bytes.
    fn read(text: &[u8], length: Option<u64>) -> Result<Vec<u8>, String> {
        read_blocks(text, length, 4, &mut |_, _| {}).map_err(|fault| fault.reason)
    }

    #[test]
    fn a_file_that_changes_is_refused() {
        assert_eq!(read(b"abcdef", Some(6)), Ok(b"abcdef".to_vec()));
        let grown = read(b"abcdefg", Some(6)).unwrap_err();
        assert!(grown.contains("it had 6 bytes, then more"), "{grown}");
        let cut = read(b"abcd", Some(6)).unwrap_err();
        assert!(cut.contains("it had 6 bytes, then 4"), "{cut}");
    }

    #[test]
    fn what_has_no_size_ends_at_the_limit() {
        assert_eq!(read(b"", None), Ok(Vec::new()));
        assert_eq!(read(b"abcd", None), Ok(b"abcd".to_vec()));
        let over = read(b"abcde", None).unwrap_err();
        assert!(over.contains("longer than 4 bytes"), "{over}");
    }
}
