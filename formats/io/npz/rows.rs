//! Rows of an archive in CSR. The offsets are read completely, and only the indices and values of the selected rows.

use super::super::{Fault, limits::Budget, quote, rows::Counted};
use super::Archive;
use super::sparse::{Compressed, block, format, in_order, indices, offsets, shape};
use crate::error::*;
use crate::{Csr, CsrPattern, Element, check};
use std::{fs::File, ops::Range};

pub(in super::super) fn count_rows(file: &File, budget: Budget) -> Result<Counted, Fault> {
    let mut archive = Archive::open(file, budget)?;
    let format = format(&mut archive)?;
    if format != "csr" {
        let format = quote(format.as_bytes());
        let reason = format!("format {format} is not read in parts of rows, only csr");
        return Err(Fault::member("format", reason));
    }
    let shape = shape(&mut archive)?;
    let entries = archive.member("indices", |indices, _| Ok(indices.len()))?;
    let values = archive.member("data", |data, _| {
        block(&data.shape, false)?;
        Ok(data.len())
    })?;
    if values != entries {
        let reason = format!("{values} values, {entries} expected");
        return Err(Fault::member("data", reason));
    }
    let mut counts = offsets(&mut archive, "row", shape[0], entries)?;
    for row in 0..shape[0] {
        // The offsets are known modulo 2^32, and no row has that many entries.
        counts[row] = counts[row + 1].wrapping_sub(counts[row]);
    }
    counts.truncate(shape[0]);
    Ok(Counted { shape, counts, checksum: archive.checksum()? })
}

/// Messages use `name` as the file path.
pub(in super::super) fn read_rows<T: Element>(
    file: &File,
    budget: Budget,
    name: &str,
    counted: &Counted,
    rows: Range<usize>,
) -> Result<Csr<T>> {
    let (count, cols) = (rows.len(), counted.shape[1]);
    let entries = counted.entries(&rows);
    check::fits("entries", entries.len() as u128)?;
    let mut offsets = check::reserved("row offsets", count + 1)?;
    offsets.push(0);
    for entries in &counted.counts[rows] {
        offsets.push(offsets[offsets.len() - 1] + entries);
    }
    let read = || {
        let mut archive = Archive::open(file, budget)?;
        counted.is_still(archive.checksum()?)?;
        archive.budget.take::<u32>(offsets.len()).map_err(Fault::whole)?;
        let part = match entries {
            all if all == counted.all() => None,
            // For an empty range, do not skip any elements.
            none if none.is_empty() => Some(0..0),
            part => Some(part),
        };
        let values =
            archive.part("data", part.clone(), |mut data, budget| data.values::<T>(budget))?;
        let indices = indices(&mut archive, "indices", part, "column", cols)?;
        let parts = Compressed { offsets, indices, values, block: (1, 1) };
        in_order(parts, &mut archive.budget)
    };
    let read = read().map_err(|fault: Fault| fault.at(name))?;
    let pattern = CsrPattern::new(count, cols, read.offsets, read.indices)?;
    Csr::new(pattern, read.values)
}
