//! Reading of some rows of a file without loading the whole text. Every pass reads and validates all lines, and keeps
//! the entries of the selected rows.

use super::super::bytes::{PIECE, Pieces};
use super::super::entries::coo_from_entries;
use super::super::loaded::coo_into_csr;
use super::super::rows::{Counted, changed};
use super::super::{Fault, Limits, limits::Budget};
use super::coordinate::{Mirrors, Reader, cut};
use super::header::{Field, Header, Layout, Search};
use crate::error::*;
use crate::{Csr, Element, check};
use std::{
    fs::File,
    io::{Seek, SeekFrom},
    ops::Range,
};

/// File whose header has been read.
struct Text<'a> {
    pieces: Pieces<&'a File>,
    header: Header,
    lines_before: u64,
}

impl<'a> Text<'a> {
    fn open(mut file: &'a File, length: u64, limits: Limits) -> Result<Self, Fault> {
        file.seek(SeekFrom::Start(0))?;
        let mut pieces = Pieces::new(file, length, limits.of(0));
        let mut search = Search::default();
        let (header, lines_before, used) = loop {
            let Some(text) = pieces.next()? else {
                return Err(search.missing());
            };
            if let Some((header, body)) = search.look(text)? {
                break (header, body.lines_before, body.bytes_before);
            }
        };
        pieces.take_back(used as usize);
        if header.layout == Layout::Array {
            let reason = "layout array is not read in parts of rows, only coordinate";
            return Err(Fault::line(1, reason));
        }
        Ok(Self { pieces, header, lines_before })
    }

    /// Passes the entries of these rows to `take` in file order. Returns whether [`Text::refuse_mirrored`] must be
    /// called.
    fn entries<T: Element>(
        &mut self,
        rows: Range<usize>,
        mut take: impl FnMut(&[(u64, T)]) -> Result<(), Fault>,
    ) -> Result<bool, Fault> {
        let mut reader = Reader::new(&self.header, self.lines_before, rows);
        while let Some(text) = self.pieces.next()? {
            for chunk in reader.batch::<T>(&cut(text, PIECE / 16))? {
                take(&chunk.entries)?;
            }
        }
        reader.end()?;
        Ok(reader.both_halves())
    }

    fn refuse_mirrored<T: Element>(
        mut self,
        rows: Range<usize>,
        entries: usize,
    ) -> Result<(), Fault> {
        let mut mirrors = Mirrors::new(self.lines_before, rows, entries)?;
        while let Some(text) = self.pieces.next()? {
            mirrors.add::<T>(&self.header, text);
        }
        mirrors.refuse()
    }
}

pub(in super::super) fn count_rows(
    file: &File,
    length: u64,
    limits: Limits,
    mut budget: Budget,
) -> Result<Counted, Fault> {
    let mut text = Text::open(file, length, limits)?;
    let (rows, cols) = (text.header.rows, text.header.cols);
    budget.take::<u32>(rows).map_err(Fault::whole)?;
    let counts = check::zeroed::<u32>("row counts", rows);
    let mut counts = counts.map_err(|error| Fault::whole(error.to_string()))?;
    // Parse numbers as i8, which saturates: the type of the values, and thus their range, is not known yet.
    text.entries::<i8>(0..rows, |entries| {
        for (key, _) in entries {
            counts[(key >> 32) as usize] += 1;
        }
        Ok(())
    })?;
    Ok(Counted { shape: [rows, cols], counts, checksum: text.pieces.checksum() })
}

/// Messages use `name` as the file path.
pub(in super::super) fn read_rows<T: Element>(
    file: &File,
    length: u64,
    limits: Limits,
    mut budget: Budget,
    name: &str,
    counted: &Counted,
    rows: Range<usize>,
) -> Result<Csr<T>> {
    let count = counted.entries(&rows).len();
    check::fits("entries", count as u128)?;
    let mut read = || {
        let mut text = Text::open(file, length, limits)?;
        let header = text.header;
        budget.take::<(u64, T)>(count).map_err(Fault::whole)?;
        let mut entries = Vec::new();
        let none = |_| Fault::whole(format!("no memory for {count} entries"));
        entries.try_reserve_exact(count).map_err(none)?;
        let both_halves = text.entries::<T>(rows.clone(), |more| {
            if entries.len() + more.len() > count {
                return Err(changed(format!("rows {rows:?} had {count} entries, now more")));
            }
            entries.extend_from_slice(more);
            Ok(())
        })?;
        counted.is_still(text.pieces.checksum())?;
        if both_halves {
            let text = Text::open(file, length, limits)?;
            text.refuse_mirrored::<T>(rows.clone(), count)?;
        }
        Ok((header.field == Field::Pattern, entries))
    };
    let (merge, entries) = read().map_err(|fault: Fault| fault.at(name))?;
    let held = (count * size_of::<(u64, T)>()) as u64;
    let room = limits.of(length).saturating_sub(held);
    coo_into_csr(coo_from_entries(rows.len(), counted.shape[1], entries, merge, room)?)
}
