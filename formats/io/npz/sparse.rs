//! The members put together and checked: offsets ascend, indices are in range, lengths agree.

use super::super::{Fault, entries::coo_from_entries, npy::Array, quote};
use super::Archive;
use crate::{AnySparse, Bsr, BsrPattern, Csc, CscPattern, Csr, CsrPattern, Element, FormatError};

pub(super) fn read<T: Element>(
    archive: &mut Archive<'_>,
    name: &str,
) -> Result<AnySparse<T>, FormatError> {
    let at = |fault: Fault| fault.at(name);
    let format = archive.member("format").and_then(|text| {
        text.text()
            .map_err(|reason| Fault::member("format", reason))
    });
    let format = format.map_err(at)?;
    let [rows, cols] = shape(archive).map_err(at)?;
    match format.as_str() {
        "coo" => {
            let entries = coordinates(archive, rows, cols).map_err(at)?;
            Ok(coo_from_entries(rows, cols, entries, false)?.into())
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
        other => {
            let reason = format!(
                "format {} is not supported, only csr, csc, coo and bsr",
                quote(other.as_bytes())
            );
            Err(at(Fault::member("format", reason)))
        }
    }
}

fn shape(archive: &mut Archive<'_>) -> Result<[usize; 2], Fault> {
    let shape = archive.indices("shape")?;
    let [rows, cols] = shape[..] else {
        return Err(Fault::member(
            "shape",
            format!("rows and columns expected, {} numbers found", shape.len()),
        ));
    };
    for (count, name) in [(rows, "row"), (cols, "column")] {
        if count < 0 {
            return Err(Fault::member(
                "shape",
                format!("{name} count is negative: {count}"),
            ));
        }
        if count > i128::from(u32::MAX) {
            let reason = format!(
                "{name} count {count} is over the index type, {} at most",
                u32::MAX
            );
            return Err(Fault::member("shape", reason));
        }
    }
    Ok([rows as usize, cols as usize])
}

fn values<T: Element>(data: &Array) -> Result<Vec<T>, Fault> {
    data.values()
        .map_err(|(position, reason)| Fault::member(format!("data[{position}]"), reason))
}

/// Indices into an axis, in range.
fn indices(
    archive: &mut Archive<'_>,
    member: &str,
    axis: &str,
    extent: usize,
) -> Result<Vec<u32>, Fault> {
    let wide = archive.indices(member)?;
    let wrong = wide
        .iter()
        .position(|index| *index < 0 || *index >= extent as i128);
    if let Some(at) = wrong {
        let index = wide[at];
        let reason = if index < 0 {
            format!("{axis} index is negative: {index}")
        } else {
            format!("{axis} index {index} is past {}", extent as i64 - 1)
        };
        return Err(Fault::member(format!("{member}[{at}]"), reason));
    }
    Ok(wide.into_iter().map(|index| index as u32).collect())
}

fn coordinates<T: Element>(
    archive: &mut Archive<'_>,
    rows: usize,
    cols: usize,
) -> Result<Vec<(u64, T)>, Fault> {
    let row_index = indices(archive, "row", "row", rows)?;
    let col_index = indices(archive, "col", "column", cols)?;
    if col_index.len() != row_index.len() {
        let reason = format!(
            "{} column indices, {} expected",
            col_index.len(),
            row_index.len()
        );
        return Err(Fault::member("col", reason));
    }
    let data = archive.member("data")?;
    if data.len() != row_index.len() {
        return Err(Fault::member(
            "data",
            format!("{} values, {} expected", data.len(), row_index.len()),
        ));
    }
    let keys = row_index
        .iter()
        .zip(&col_index)
        .map(|(row, col)| u64::from(*row) << 32 | u64::from(*col));
    Ok(keys.zip(values::<T>(&data)?).collect())
}

/// CSR, CSC with its axes exchanged, or BSR.
struct Compressed<T> {
    offsets: Vec<u32>,
    indices: Vec<u32>,
    values: Vec<T>,
    block: (usize, usize),
}

fn compressed<T: Element>(
    archive: &mut Archive<'_>,
    [major, minor]: [&str; 2],
    [major_extent, minor_extent]: [usize; 2],
    blocked: bool,
) -> Result<Compressed<T>, Fault> {
    let data = archive.member("data")?;
    let block = match (blocked, data.shape.as_slice()) {
        (false, [_]) => (1, 1),
        (true, &[_, height, width]) if height > 0 && width > 0 => (height, width),
        (_, shape) => {
            let order = if blocked { 3 } else { 1 };
            return Err(Fault::member(
                "data",
                format!("an array of order {order} expected, shape {shape:?} found"),
            ));
        }
    };
    let lines = major_extent.div_ceil(block.0);
    let offsets = archive.indices("indptr")?;
    let indices = indices(archive, "indices", minor, minor_extent.div_ceil(block.1))?;
    let offsets = check_offsets(&offsets, major, lines, indices.len())?;
    if data.shape[0] != indices.len() {
        return Err(Fault::member(
            "data",
            format!("{} values, {} expected", data.shape[0], indices.len()),
        ));
    }
    let values = values(&data)?;
    let ascending = offsets.windows(2).all(|ends| {
        indices[ends[0] as usize..ends[1] as usize]
            .windows(2)
            .all(|pair| pair[0] < pair[1])
    });
    let parts = Compressed {
        offsets,
        indices,
        values,
        block,
    };
    Ok(if ascending { parts } else { sort(parts) })
}

fn check_offsets(
    offsets: &[i128],
    axis: &str,
    lines: usize,
    entries: usize,
) -> Result<Vec<u32>, Fault> {
    let at =
        |position: usize, reason: String| Err(Fault::member(format!("indptr[{position}]"), reason));
    if offsets.len() != lines + 1 {
        return Err(Fault::member(
            "indptr",
            format!("{} {axis} offsets, {} expected", offsets.len(), lines + 1),
        ));
    }
    if entries > u32::MAX as usize {
        return Err(Fault::member(
            "indices",
            format!("{entries} entries are over the index type"),
        ));
    }
    if offsets[0] != 0 {
        return at(
            0,
            format!("first {axis} offset is not 0 but {}", offsets[0]),
        );
    }
    if let Some(position) = offsets.windows(2).position(|pair| pair[1] < pair[0]) {
        return at(
            position + 1,
            format!(
                "{axis} offset {} is below {}",
                offsets[position + 1],
                offsets[position]
            ),
        );
    }
    match offsets[lines] - entries as i128 {
        0 => Ok(offsets.iter().map(|offset| *offset as u32).collect()),
        1.. => at(
            lines,
            format!("{axis} offset {} is past {entries}", offsets[lines]),
        ),
        _ => at(
            lines,
            format!("last {axis} offset {} is not {entries}", offsets[lines]),
        ),
    }
}

/// Sorts each line by index, stably, and adds up what is at one place.
fn sort<T: Element>(parts: Compressed<T>) -> Compressed<T> {
    let area = parts.block.0 * parts.block.1;
    let mut out = Compressed {
        offsets: vec![0],
        indices: Vec::new(),
        values: Vec::new(),
        block: parts.block,
    };
    for ends in parts.offsets.windows(2) {
        let mut order: Vec<usize> = (ends[0] as usize..ends[1] as usize).collect();
        order.sort_by_key(|entry| parts.indices[*entry]);
        for same in order.chunk_by(|left, right| parts.indices[*left] == parts.indices[*right]) {
            out.indices.push(parts.indices[same[0]]);
            for place in 0..area {
                let mut sum = parts.values[same[0] * area + place].to_acc();
                same[1..]
                    .iter()
                    .for_each(|entry| sum += parts.values[entry * area + place].to_acc());
                out.values.push(T::from_acc(sum));
            }
        }
        out.offsets.push(out.indices.len() as u32);
    }
    out
}
