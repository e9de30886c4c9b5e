//! Assembly and validation of the members: offsets ascend, indices are in range, lengths agree.

use super::super::{Fault, entries::coo_from_entries, limits::Budget, npy::Wrong, quote};
use super::{Archive, coords, diagonals};
use crate::error::*;
use crate::{
    AnySparse, Bsr, BsrPattern, Coo, CooPattern, Csc, CscPattern, Csr, CsrPattern, Element,
};
use std::io::{Read, Seek};
use std::ops::Range;

pub(super) fn read<T: Element>(
    archive: &mut Archive<impl Read + Seek + Clone>,
    name: &str,
) -> Result<AnySparse<T>> {
    let at = |fault: Fault| fault.at(name);
    let format = format(archive).map_err(at)?;
    let extents = extents(archive).map_err(at)?;
    match (format.as_str(), &extents[..]) {
        ("coo", _) if archive.has("coords") => return coords::read(archive, extents, name),
        ("csr", &[extent]) => return coords::read_vector(archive, extent, name),
        _ => {}
    }
    let [rows, cols] = matrix(&extents).map_err(at)?;
    match format.as_str() {
        "coo" => {
            let read = coordinates::<T>(archive, rows, cols).map_err(at)?;
            let ascending = read.places().is_sorted_by(|a, b| a < b);
            if ascending {
                let pattern = CooPattern::new(vec![rows, cols], vec![read.rows, read.cols])?;
                return Ok(Coo::new(pattern, read.values)?.into());
            }
            let (entries, room) = read.entries(&mut archive.budget).map_err(at)?;
            Ok(coo_from_entries(rows, cols, entries, false, room)?.into())
        }
        "csr" => {
            let a = compressed(archive, ["row", "column"], [rows, cols], false).map_err(at)?;
            let pattern = CsrPattern::new(rows, cols, a.offsets, a.indices)?;
            Ok(Csr::new(pattern, a.values)?.into())
        }
        "csc" => {
            let a = compressed(archive, ["column", "row"], [cols, rows], false).map_err(at)?;
            let pattern = CscPattern::new(rows, cols, a.offsets, a.indices)?;
            Ok(Csc::new(pattern, a.values)?.into())
        }
        "bsr" => {
            let a = compressed(archive, ["row", "column"], [rows, cols], true).map_err(at)?;
            let pattern = BsrPattern::new(rows, cols, a.block, a.offsets, a.indices)?;
            Ok(Bsr::new(pattern, a.values)?.into())
        }
        "dia" => diagonals::read(archive, [rows, cols], name),
        other => {
            let found = quote(other.as_bytes());
            let reason =
                format!("format {found} is not supported, only csr, csc, coo, bsr and dia");
            Err(at(Fault::member("format", reason)))
        }
    }
}

pub(super) fn format(archive: &mut Archive<impl Read + Seek + Clone>) -> Result<String, Fault> {
    archive.member("format", |mut text, _| text.text().map_err(Wrong::from))
}

/// Rows and columns of the matrix.
pub(super) fn shape(archive: &mut Archive<impl Read + Seek + Clone>) -> Result<[usize; 2], Fault> {
    matrix(&extents(archive)?)
}

fn matrix(extents: &[usize]) -> Result<[usize; 2], Fault> {
    <[usize; 2]>::try_from(extents).map_err(|_| {
        let found = extents.len();
        let reason = format!("rows and columns expected, {found} numbers found");
        Fault::member("shape", reason)
    })
}

/// Maximum number of axes of a NumPy array.
const ORDER_LIMIT: usize = 64;

fn extents(archive: &mut Archive<impl Read + Seek + Clone>) -> Result<Vec<usize>, Fault> {
    let mut extents = Vec::new();
    archive.member("shape", |mut shape, budget| {
        if !(1..=ORDER_LIMIT).contains(&shape.len()) {
            let found = shape.len();
            return Err(
                format!("1 to {ORDER_LIMIT} extents expected, {found} numbers found").into()
            );
        }
        shape.indices(budget, |extent| {
            extents.push(extent);
            Ok(())
        })
    })?;
    for (axis, &count) in extents.iter().enumerate() {
        let name = match (extents.len(), axis) {
            (2, 0) => "row count".to_owned(),
            (2, _) => "column count".to_owned(),
            _ => format!("extent of axis {axis}"),
        };
        if count < 0 {
            return Err(Fault::member("shape", format!("{name} is negative: {count}")));
        }
        let most = u32::MAX;
        if count > most.into() {
            let reason = format!("{name} {count} is over the index type, {most} at most");
            return Err(Fault::member("shape", reason));
        }
    }
    Ok(extents.into_iter().map(|count| count as usize).collect())
}

/// Reads the given elements of a member (or all of them) as indices of an axis, and validates their range.
pub(super) fn indices(
    archive: &mut Archive<impl Read + Seek + Clone>,
    member: &str,
    elements: Option<Range<usize>>,
    axis: &str,
    extent: usize,
) -> Result<Vec<u32>, Fault> {
    archive.part(member, elements, |mut array, budget| {
        array.indices(budget, |index| {
            if index < 0 {
                Err(format!("{axis} index is negative: {index}"))
            } else if index >= extent as i128 {
                Err(format!("{axis} index {index} is past {}", extent as i64 - 1))
            } else {
                Ok(())
            }
        })
    })
}

/// COO with entries in any order.
struct Coordinates<T> {
    rows: Vec<u32>,
    cols: Vec<u32>,
    values: Vec<T>,
}

impl<T: Element> Coordinates<T> {
    fn places(&self) -> impl Iterator<Item = u64> {
        let places = self.rows.iter().zip(&self.cols);
        places.map(|(row, col)| u64::from(*row) << 32 | u64::from(*col))
    }

    /// Entries with their keys, and the number of bytes that sorting may use.
    fn entries(self, budget: &mut Budget) -> Result<(Vec<(u64, T)>, u64), Fault> {
        let count = self.values.len();
        let mut entries = room(count, budget)?;
        entries.extend(self.places().zip(self.values.iter().copied()));
        budget.give::<(u32, u32)>(count);
        budget.give::<T>(count);
        drop(self);
        budget.take::<(u64, T)>(count).map_err(|reason| Fault::member("data", reason))?;
        Ok((entries, (count * size_of::<(u64, T)>()) as u64))
    }
}

fn coordinates<T: Element>(
    archive: &mut Archive<impl Read + Seek + Clone>,
    rows: usize,
    cols: usize,
) -> Result<Coordinates<T>, Fault> {
    let row_index = indices(archive, "row", None, "row", rows)?;
    let col_index = indices(archive, "col", None, "column", cols)?;
    if col_index.len() != row_index.len() {
        let reason = format!("{} column indices, {} expected", col_index.len(), row_index.len());
        return Err(Fault::member("col", reason));
    }
    let values = archive.member("data", |mut data, budget| {
        if data.len() != row_index.len() {
            return Err(format!("{} values, {} expected", data.len(), row_index.len()).into());
        }
        data.values::<T>(budget)
    })?;
    Ok(Coordinates { rows: row_index, cols: col_index, values })
}

/// CSR, CSC with exchanged axes, or BSR.
pub(super) struct Compressed<T> {
    pub(super) offsets: Vec<u32>,
    pub(super) indices: Vec<u32>,
    pub(super) values: Vec<T>,
    pub(super) block: (usize, usize),
}

/// Block extents from the shape of an array of values.
pub(super) fn block(shape: &[usize], blocked: bool) -> Result<(usize, usize), Wrong> {
    match (blocked, shape) {
        (false, [_]) => Ok((1, 1)),
        (true, &[_, height, width]) if height > 0 && width > 0 => Ok((height, width)),
        _ => Err(wrong_order(if blocked { 3 } else { 1 }, shape)),
    }
}

pub(super) fn wrong_order(order: usize, shape: &[usize]) -> Wrong {
    format!("an array of order {order} expected, shape {shape:?} found").into()
}

/// Memory for entries with their keys.
pub(super) fn room<T>(count: usize, budget: &mut Budget) -> Result<Vec<(u64, T)>, Fault> {
    budget.take::<(u64, T)>(count).map_err(|reason| Fault::member("data", reason))?;
    let mut entries = Vec::new();
    let none = |_| Fault::member("data", format!("no memory for {count} entries"));
    entries.try_reserve_exact(count).map_err(none)?;
    Ok(entries)
}

pub(super) fn compressed<T: Element>(
    archive: &mut Archive<impl Read + Seek + Clone>,
    [major, minor]: [&str; 2],
    [major_extent, minor_extent]: [usize; 2],
    blocked: bool,
) -> Result<Compressed<T>, Fault> {
    let (values, blocks, block) = archive.member("data", |mut data, budget| {
        let block = block(&data.shape, blocked)?;
        Ok((data.values::<T>(budget)?, data.shape[0], block))
    })?;
    let lines = major_extent.div_ceil(block.0);
    let minor_extent = minor_extent.div_ceil(block.1);
    let indices = indices(archive, "indices", None, minor, minor_extent)?;
    if indices.len() > u32::MAX as usize {
        let reason = format!("{} entries are over the index type", indices.len());
        return Err(Fault::member("indices", reason));
    }
    let offsets = offsets(archive, major, lines, indices.len())?;
    if blocks != indices.len() {
        return Err(Fault::member("data", format!("{blocks} values, {} expected", indices.len())));
    }
    let parts = Compressed { offsets, indices, values, block };
    in_order(parts, &mut archive.budget)
}

/// Sorts the indices of each line and sums duplicate entries.
pub(super) fn in_order<T: Element>(
    parts: Compressed<T>,
    budget: &mut Budget,
) -> Result<Compressed<T>, Fault> {
    let ascending = parts.offsets.windows(2).all(|ends| {
        parts.indices[ends[0] as usize..ends[1] as usize].windows(2).all(|pair| pair[0] < pair[1])
    });
    if ascending {
        return Ok(parts);
    }
    let whole = |reason| Fault::member("data", reason);
    budget.take::<u32>(parts.indices.len()).map_err(whole)?;
    budget.take::<T>(parts.values.len()).map_err(whole)?;
    // Memory for the order within a line: a single line may contain all entries.
    budget.take::<u32>(parts.indices.len()).map_err(whole)?;
    Ok(sort(parts))
}

/// Reads offsets that ascend from 0 to `entries`. They are returned modulo 2^32.
pub(super) fn offsets(
    archive: &mut Archive<impl Read + Seek + Clone>,
    axis: &str,
    lines: usize,
    entries: usize,
) -> Result<Vec<u32>, Fault> {
    archive.member("indptr", |mut array, budget| {
        if array.len() != lines + 1 {
            return Err(format!("{} {axis} offsets, {} expected", array.len(), lines + 1).into());
        }
        let mut last: Option<i128> = None;
        let offsets = array.indices(budget, |offset| {
            let before = last.replace(offset);
            match before {
                None if offset != 0 => Err(format!("first {axis} offset is not 0 but {offset}")),
                Some(before) if offset < before => {
                    Err(format!("{axis} offset {offset} is below {before}"))
                }
                Some(before) if offset - before > i128::from(u32::MAX) => Err(format!(
                    "{axis} offset {offset} after {before}: {} entries are over the index type",
                    offset - before
                )),
                _ if offset > entries as i128 => {
                    Err(format!("{axis} offset {offset} is past {entries}"))
                }
                _ => Ok(()),
            }
        })?;
        match last {
            Some(last) if last == entries as i128 => Ok(offsets),
            last => {
                let last = last.unwrap_or_default();
                Err(Wrong(Some(lines), format!("last {axis} offset {last} is not {entries}")))
            }
        }
    })
}

/// Sorts each line by index, stably, and sums duplicate entries.
fn sort<T: Element>(parts: Compressed<T>) -> Compressed<T> {
    let area = parts.block.0 * parts.block.1;
    let mut out = Compressed {
        offsets: parts.offsets,
        indices: Vec::with_capacity(parts.indices.len()),
        values: Vec::with_capacity(parts.values.len()),
        block: parts.block,
    };
    let mut order: Vec<u32> = Vec::new();
    let mut start = 0;
    for end in &mut out.offsets[1..] {
        order.clear();
        order.extend(start..*end);
        start = *end;
        let index = |entry: u32| parts.indices[entry as usize];
        // All keys are distinct, so this sort is stable.
        order.sort_unstable_by_key(|entry| (index(*entry), *entry));
        for same in order.chunk_by(|left, right| index(*left) == index(*right)) {
            out.indices.push(index(same[0]));
            for place in 0..area {
                let value = |entry: u32| parts.values[entry as usize * area + place];
                let mut sum = value(same[0]).to_acc();
                same[1..].iter().for_each(|entry| sum += value(*entry).to_acc());
                out.values.push(T::from_acc(sum));
            }
        }
        *end = out.indices.len() as u32;
    }
    out
}
