//! The coordinate layout: the text is cut at line ends into chunks that are parsed in parallel, and put together in
//! order, so that the first fault of the file is the one reported, with its line.

use super::super::{Fault, bytes::Lines};
use super::header::{Body, Header, Symmetry};
use super::line::{Cursor, diagnose, entry};
use crate::Element;
use crate::parallel;

const CHUNK: usize = 1 << 20;
/// Chunks parsed between two reports of the progress.
const BATCH: usize = 32;

/// What one chunk of lines held.
struct Chunk<T> {
    entries: Vec<(u64, T)>,
    lines: u64,
    /// Lines that are neither blank nor comment, the faulty one included.
    content: usize,
    /// Line within the chunk, and the reason.
    fault: Option<(u64, String)>,
    /// Off the diagonal, below and above it.
    halves: [bool; 2],
}

/// All entries, mirrored, in file order.
pub(super) fn read<T: Element>(
    header: &Header,
    body: &Body<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<(u64, T)>, Fault> {
    let chunks = cut(body.text);
    let mut entries = Vec::new();
    let (mut content, mut line, mut done) = (0, body.lines_before, body.bytes_before);
    let mut halves = [false; 2];
    for batch in chunks.chunks(BATCH) {
        let parsed: Vec<Chunk<T>> =
            parallel::collect(batch.len(), 1, &|at| parse(batch[at], header));
        for (chunk, text) in parsed.iter().zip(batch) {
            if content + chunk.content > header.entries {
                let extra = line + line_of_content(text, header.entries - content);
                return Err(Fault::line(
                    extra,
                    format!("text after the last of {} entries", header.entries),
                ));
            }
            if let Some((at, reason)) = &chunk.fault {
                return Err(Fault::line(line + at, reason.clone()));
            }
            content += chunk.content;
            line += chunk.lines;
            done += text.len() as u64;
            halves = [halves[0] | chunk.halves[0], halves[1] | chunk.halves[1]];
        }
        let more = parsed.iter().map(|chunk| chunk.entries.len()).sum();
        entries.try_reserve_exact(more).map_err(no_room)?;
        for chunk in parsed {
            entries.extend_from_slice(&chunk.entries);
        }
        progress(done);
    }
    if content < header.entries {
        return Err(Fault::line(
            line,
            format!(
                "end of the file after {content} of {} entries",
                header.entries
            ),
        ));
    }
    if header.symmetry != Symmetry::General && halves == [true; 2] {
        refuse_mirrored::<T>(header, body)?;
    }
    Ok(entries)
}

fn no_room(error: std::collections::TryReserveError) -> Fault {
    Fault::whole(error.to_string())
}

/// Pieces of about [`CHUNK`] bytes that end at line ends.
fn cut(mut text: &[u8]) -> Vec<&[u8]> {
    let mut chunks = Vec::with_capacity(text.len() / CHUNK + 1);
    while text.len() > CHUNK {
        let end = memchr::memchr(b'\n', &text[CHUNK..]).map_or(text.len(), |at| CHUNK + at + 1);
        chunks.push(&text[..end]);
        text = &text[end..];
    }
    chunks.push(text);
    chunks
}

fn parse<T: Element>(text: &[u8], header: &Header) -> Chunk<T> {
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
        chunk.entries.push((row << 32 | col, value));
        if header.symmetry != Symmetry::General && row != col {
            let negate = header.symmetry == Symmetry::SkewSymmetric;
            let mirrored = if negate {
                T::from_f64(-value.to_f64())
            } else {
                value
            };
            chunk.entries.push((col << 32 | row, mirrored));
            chunk.halves[usize::from(row < col)] = true;
        }
    }
    // A batch of chunks is held at once: no slack in them.
    chunk.entries.shrink_to_fit();
    chunk
}

/// The line, from 1, of the content line number `index`, from 0.
fn line_of_content(text: &[u8], index: usize) -> u64 {
    let mut lines = Lines::new(text);
    let is_content = |line: &&[u8]| {
        line.trim_ascii_start()
            .first()
            .is_some_and(|byte| *byte != b'%')
    };
    lines.by_ref().filter(is_content).nth(index);
    lines.number
}

/// Runs only over a symmetric file with entries in both halves: the slow look for a place and its mirror. The first
/// line that mirrors an earlier one is named.
fn refuse_mirrored<T: Element>(header: &Header, body: &Body<'_>) -> Result<(), Fault> {
    // The place in the lower half, the line, and whether it stands in the upper half there.
    let mut places: Vec<(u64, u64)> = Vec::new();
    places.try_reserve_exact(header.entries).map_err(no_room)?;
    let mut number = body.lines_before;
    for text in Lines::new(body.text) {
        number += 1;
        let Some((row, col, _)) = entry::<T>(&mut Cursor { text, at: 0 }, header) else {
            continue;
        };
        if row != col {
            let upper = u64::from(row < col);
            places.push((row.max(col) << 32 | row.min(col), number << 1 | upper));
        }
    }
    places.sort_unstable();
    let mirrors = places.chunk_by(|a, b| a.0 == b.0).filter_map(|same| {
        let first = same[0].1;
        let other = same.iter().find(|place| place.1 & 1 != first & 1)?;
        Some((other.1, first, other.0))
    });
    let Some((line, first, place)) = mirrors.min() else {
        return Ok(());
    };
    let (high, low) = ((place >> 32) + 1, (place & 0xffff_ffff) + 1);
    let (row, col) = if line & 1 == 1 {
        (low, high)
    } else {
        (high, low)
    };
    let reason = format!(
        "({row}, {col}) mirrors ({col}, {row}) of line {}",
        first >> 1
    );
    Err(Fault::line(line >> 1, reason))
}
