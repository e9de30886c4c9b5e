//! Coordinate layout: the text is divided at line ends into chunks that are parsed in parallel. The results are
//! combined in order, so that the first error of the file is reported, with its line.

use super::super::{Fault, bytes::Lines};
use super::header::{Body, Header, Symmetry};
use super::line::{Cursor, diagnose, entry};
use crate::Element;
use crate::parallel;
use std::ops::Range;

const CHUNK: usize = 1 << 20;
/// Chunks parsed between two progress reports.
const BATCH: usize = 32;

/// Contents of one chunk of lines.
pub(super) struct Chunk<T> {
    /// Entries in the selected rows. A mirrored entry follows its original. Row 0 is the first selected row.
    pub(super) entries: Vec<(u64, T)>,
    lines: u64,
    /// Number of lines that are neither blank nor comments, including the line with an error.
    content: usize,
    /// Line within the chunk, and reason of the error.
    fault: Option<(u64, String)>,
    /// Whether there are entries below and above the diagonal.
    halves: [bool; 2],
}

/// Reads all entries in file order, including mirrored ones.
pub(super) fn read<T: Element>(
    header: &Header,
    body: &Body<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<(u64, T)>, Fault> {
    let chunks = cut(body.text, CHUNK);
    let mut entries = Vec::new();
    let mut done = body.bytes_before;
    let mut reader = Reader::new(header, body.lines_before, 0..header.rows);
    for batch in chunks.chunks(BATCH) {
        let parsed = reader.batch::<T>(batch)?;
        let more = parsed.iter().map(|chunk| chunk.entries.len()).sum();
        entries.try_reserve_exact(more).map_err(no_room)?;
        for chunk in parsed {
            entries.extend_from_slice(&chunk.entries);
        }
        done += batch.iter().map(|text| text.len() as u64).sum::<u64>();
        progress(done);
    }
    reader.end()?;
    if reader.both_halves() {
        let mut mirrors = Mirrors::new(body.lines_before, 0..header.rows, header.entries)?;
        mirrors.add::<T>(header, body.text);
        mirrors.refuse()?;
    }
    Ok(entries)
}

/// Parser of the lines after the header, chunk by chunk, with the position in the file. Every line is validated; only
/// entries of the selected rows are kept.
pub(super) struct Reader<'a> {
    header: &'a Header,
    rows: Range<u64>,
    content: usize,
    line: u64,
    halves: [bool; 2],
}

impl<'a> Reader<'a> {
    pub(super) fn new(header: &'a Header, lines_before: u64, rows: Range<usize>) -> Self {
        Self {
            header,
            rows: rows.start as u64..rows.end as u64,
            content: 0,
            line: lines_before,
            halves: [false; 2],
        }
    }

    /// Parses the next chunks of text in parallel.
    pub(super) fn batch<T: Element>(&mut self, batch: &[&[u8]]) -> Result<Vec<Chunk<T>>, Fault> {
        let (header, rows) = (self.header, &self.rows);
        let parsed: Vec<Chunk<T>> =
            parallel::collect(batch.len(), 1, &|at| parse(batch[at], header, rows));
        for (chunk, text) in parsed.iter().zip(batch) {
            if self.content + chunk.content > header.entries {
                let extra = self.line + line_of_content(text, header.entries - self.content);
                return Err(Fault::line(
                    extra,
                    format!("text after the last of {} entries", header.entries),
                ));
            }
            if let Some((at, reason)) = &chunk.fault {
                return Err(Fault::line(self.line + at, reason.clone()));
            }
            self.content += chunk.content;
            self.line += chunk.lines;
            self.halves[0] |= chunk.halves[0];
            self.halves[1] |= chunk.halves[1];
        }
        Ok(parsed)
    }

    /// Validates the number of entries at the end of the text.
    pub(super) fn end(&self) -> Result<(), Fault> {
        let (content, entries) = (self.content, self.header.entries);
        if content < entries {
            let reason = format!("end of the file after {content} of {entries} entries");
            return Err(Fault::line(self.line, reason));
        }
        Ok(())
    }

    /// Whether a symmetric matrix has entries in both halves. [`Mirrors`] must then validate them.
    pub(super) fn both_halves(&self) -> bool {
        self.halves == [true; 2]
    }
}

fn no_room(error: std::collections::TryReserveError) -> Fault {
    Fault::whole(error.to_string())
}

/// Divides a text into chunks of about `size` bytes that end at line ends.
pub(super) fn cut(mut text: &[u8], size: usize) -> Vec<&[u8]> {
    let mut chunks = Vec::with_capacity(text.len() / size + 1);
    while text.len() > size {
        let end = memchr::memchr(b'\n', &text[size..]).map_or(text.len(), |at| size + at + 1);
        chunks.push(&text[..end]);
        text = &text[end..];
    }
    chunks.push(text);
    chunks
}

fn parse<T: Element>(text: &[u8], header: &Header, rows: &Range<u64>) -> Chunk<T> {
    let mut chunk = Chunk {
        entries: Vec::with_capacity(text.len() / 16),
        lines: 0,
        content: 0,
        fault: None,
        halves: [false; 2],
    };
    let mut cursor = Cursor { text, at: 0 };
    while cursor.at < text.len() {
        let start = cursor.at;
        chunk.lines += 1;
        if matches!(cursor.peek(), None | Some(b'\n' | b'%')) {
            cursor.rest_of_line();
            continue;
        }
        chunk.content += 1;
        let Some((row, col, value)) = entry::<T>(&mut cursor, header) else {
            let line = Cursor { text, at: start }.rest_of_line();
            chunk.fault = Some((chunk.lines, diagnose::<T>(line, header)));
            break;
        };
        if rows.contains(&row) {
            chunk.entries.push(((row - rows.start) << 32 | col, value));
        }
        if header.symmetry != Symmetry::General && row != col {
            if rows.contains(&col) {
                let negate = header.symmetry == Symmetry::SkewSymmetric;
                let mirrored = if negate { T::from_f64(-value.to_f64()) } else { value };
                let key = (col - rows.start) << 32 | row;
                chunk.entries.push((key, mirrored));
            }
            chunk.halves[usize::from(row < col)] = true;
        }
    }
    // Release unused memory, because all chunks of a batch are in memory together.
    chunk.entries.shrink_to_fit();
    chunk
}

/// Line number (from 1) of the content line with index `index` (from 0).
fn line_of_content(text: &[u8], index: usize) -> u64 {
    let mut lines = Lines::new(text);
    let is_content =
        |line: &&[u8]| line.trim_ascii_start().first().is_some_and(|byte| *byte != b'%');
    lines.by_ref().filter(is_content).nth(index);
    lines.number
}

/// Slow search for an entry and its mirror, where either is in the selected rows. It runs only for symmetric files with
/// entries in both halves.
pub(super) struct Mirrors {
    rows: Range<u64>,
    /// Number of lines read.
    number: u64,
    /// Position in the lower half, and the line number. The lowest bit of the latter is set if the entry is in the
    /// upper half.
    places: Vec<(u64, u64)>,
}

impl Mirrors {
    /// `most` is the maximum number of positions.
    pub(super) fn new(lines_before: u64, rows: Range<usize>, most: usize) -> Result<Self, Fault> {
        let mut places = Vec::new();
        places.try_reserve_exact(most).map_err(no_room)?;
        Ok(Self { rows: rows.start as u64..rows.end as u64, number: lines_before, places })
    }

    pub(super) fn add<T: Element>(&mut self, header: &Header, text: &[u8]) {
        for text in Lines::new(text) {
            self.number += 1;
            let Some((row, col, _)) = entry::<T>(&mut Cursor { text, at: 0 }, header) else {
                continue;
            };
            if row != col && (self.rows.contains(&row) || self.rows.contains(&col)) {
                let place = row.max(col) << 32 | row.min(col);
                let upper = u64::from(row < col);
                self.places.push((place, self.number << 1 | upper));
            }
        }
    }

    /// Returns an error with the first line that mirrors an earlier line.
    pub(super) fn refuse(mut self) -> Result<(), Fault> {
        self.places.sort_unstable();
        let same = self.places.chunk_by(|a, b| a.0 == b.0);
        let mirrors = same.filter_map(|same| {
            let first = same[0].1;
            let other = same.iter().find(|place| place.1 & 1 != first & 1)?;
            Some((other.1, first, other.0))
        });
        let Some((line, first, place)) = mirrors.min() else {
            return Ok(());
        };
        let (high, low) = ((place >> 32) + 1, (place & 0xffff_ffff) + 1);
        let (row, col) = if line & 1 == 1 { (low, high) } else { (high, low) };
        let reason = format!("({row}, {col}) mirrors ({col}, {row}) of line {}", first >> 1);
        Err(Fault::line(line >> 1, reason))
    }
}
