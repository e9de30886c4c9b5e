//! `.smtx`, the format of the Deep Learning Matrix Collection (Gale, Zaharia, Young, Elsen, SC 2020): a pattern without
//! values, in three lines: `rows, cols, nnz`, the row offsets, and the column indices from 0.

use super::{
    Fault, Limits,
    bytes::{self, Lines, words},
    fits_index, whole_number, write_file,
};
use crate::error::*;
use crate::{CsrPattern, Pattern};
use std::path::Path;

/// Reads a `.smtx` file. Unsorted columns of a row are **sorted**; duplicate columns in a row are an error. CR LF and
/// blank lines at the end are accepted.
///
/// # Errors
/// Returns [`FormatError::Io`] with the line.
pub fn read_smtx(path: impl AsRef<Path>) -> Result<CsrPattern> {
    bytes::read_as(path.as_ref(), Limits::default(), read_smtx_from)
}

/// [`read_smtx`] from memory. Messages use `name` as the file path.
pub fn read_smtx_from(text: &[u8], name: &str) -> Result<CsrPattern> {
    let (rows, cols, offsets, columns) = parse(text).map_err(|fault| fault.at(name))?;
    CsrPattern::new(rows, cols, offsets, columns)
}

/// Writes a pattern as `.smtx`.
///
/// # Errors
/// Returns [`FormatError::Io`] if the file cannot be written.
pub fn write_smtx(path: impl AsRef<Path>, pattern: &CsrPattern) -> Result<()> {
    write_file(path.as_ref(), |out| {
        writeln!(out, "{}, {}, {}", pattern.rows(), pattern.cols(), pattern.nnz())?;
        for indices in [pattern.offsets(), pattern.columns()] {
            indices.iter().try_for_each(|index| write!(out, "{index} "))?;
            writeln!(out)?;
        }
        Ok(())
    })
}

type Parts = (usize, usize, Vec<u32>, Vec<u32>);

fn parse(text: &[u8]) -> Result<Parts, Fault> {
    let mut lines = Lines::new(text);
    let header = lines
        .next()
        .ok_or_else(|| Fault::line(1, "empty file, rows, columns and nonzeros expected"))?;
    let [rows, cols, nnz] = parse_header(header).map_err(|reason| Fault::line(1, reason))?;
    let offsets =
        lines.next().ok_or_else(|| Fault::line(1, "end of the file before the row offsets"))?;
    let offsets = indices(offsets, "row offset").map_err(|reason| Fault::line(2, reason))?;
    check_offsets(&offsets, rows, nnz).map_err(|reason| Fault::line(2, reason))?;
    let columns = lines.next().unwrap_or_default();
    let mut columns = indices(columns, "column index").map_err(|reason| Fault::line(3, reason))?;
    check_columns(&mut columns, &offsets, cols).map_err(|reason| Fault::line(3, reason))?;
    let narrow = |wide: Vec<u64>| wide.into_iter().map(|index| index as u32).collect();
    match lines.find(|line| words(line).next().is_some()) {
        Some(_) => Err(Fault::line(lines.number, "text after the column indices")),
        None => Ok((rows, cols, narrow(offsets), narrow(columns))),
    }
}

fn parse_header(line: &[u8]) -> Result<[usize; 3], String> {
    const NAMES: [&str; 3] = ["row", "column", "nonzero"];
    let found: Vec<&[u8]> = line
        .split(|byte| byte.is_ascii_whitespace() || *byte == b',')
        .filter(|word| !word.is_empty())
        .collect();
    if found.len() != 3 {
        return Err(format!("rows, columns and nonzeros expected, {} numbers found", found.len()));
    }
    let mut counts = [0_u64; 3];
    for ((count, word), name) in counts.iter_mut().zip(&found).zip(NAMES) {
        *count = whole_number(word, &format!("{name} count"), u64::MAX)?;
        fits_index(name, *count)?;
    }
    let [rows, cols, nnz] = counts;
    if nnz > rows * cols {
        return Err(format!("{nnz} nonzeros are more than {rows} x {cols} can hold"));
    }
    Ok(counts.map(|count| count as usize))
}

fn indices(line: &[u8], name: &str) -> Result<Vec<u64>, String> {
    words(line).map(|word| whole_number(word, name, u64::MAX)).collect()
}

fn check_offsets(offsets: &[u64], rows: usize, nnz: usize) -> Result<(), String> {
    match offsets.len() {
        found if found < rows + 1 => return Err(format!("{found} of {} row offsets", rows + 1)),
        found if found > rows + 1 => {
            return Err(format!("{found} row offsets, {} expected", rows + 1));
        }
        _ => {}
    }
    if offsets[0] != 0 {
        return Err(format!("first row offset is not 0 but {}", offsets[0]));
    }
    if let Some(pair) = offsets.windows(2).find(|pair| pair[1] < pair[0]) {
        return Err(format!("row offset {} is below {}", pair[1], pair[0]));
    }
    // Offsets ascend, so the last is the largest.
    match offsets[rows] {
        last if last > nnz as u64 => Err(format!("row offset {last} is past {nnz}")),
        last if last < nnz as u64 => Err(format!("last row offset {last} is not {nnz}")),
        _ => Ok(()),
    }
}

/// Validates the columns for valid offsets, and sorts the rows that are not sorted.
fn check_columns(columns: &mut [u64], offsets: &[u64], cols: usize) -> Result<(), String> {
    let nnz = offsets[offsets.len() - 1] as usize;
    match columns.len() {
        found if found < nnz => return Err(format!("{found} of {nnz} column indices")),
        found if found > nnz => return Err(format!("{found} column indices, {nnz} expected")),
        _ => {}
    }
    if let Some(index) = columns.iter().find(|index| **index >= cols as u64) {
        return Err(format!("column index {index} is past {}", cols as i64 - 1));
    }
    for (row, ends) in offsets.windows(2).enumerate() {
        let columns = &mut columns[ends[0] as usize..ends[1] as usize];
        if !columns.is_sorted() {
            columns.sort_unstable();
        }
        if let Some(pair) = columns.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("column index {} is twice in row {}", pair[0], row + 1));
        }
    }
    Ok(())
}
