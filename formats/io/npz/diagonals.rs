//! Format `dia`: `data[d, j]` is the element of column `j` on the diagonal `offsets[d]`, in row `j - offsets[d]`. Zeros
//! pad the diagonals. They are dropped, as in SciPy's own conversion.

use super::super::{Fault, entries::coo_from_entries};
use super::Archive;
use super::sparse::{room, wrong_order};
use crate::error::*;
use crate::{AnySparse, Element};
use std::io::{Read, Seek};

pub(super) fn read<T: Element>(
    archive: &mut Archive<impl Read + Seek + Clone>,
    [rows, cols]: [usize; 2],
    name: &str,
) -> Result<AnySparse<T>> {
    let entries = entries(archive, [rows, cols]);
    let (entries, room) = entries.map_err(|fault| fault.at(name))?;
    Ok(coo_from_entries(rows, cols, entries, false, room)?.into())
}

/// Nonzeros with their keys, and the number of bytes that sorting may use.
fn entries<T: Element>(
    archive: &mut Archive<impl Read + Seek + Clone>,
    [rows, cols]: [usize; 2],
) -> Result<(Vec<(u64, T)>, u64), Fault> {
    let offsets = offsets(archive)?;
    let (values, width) = archive.member("data", |mut data, budget| {
        let &[diagonals, width] = &data.shape[..] else {
            return Err(wrong_order(2, &data.shape));
        };
        if diagonals != offsets.len() {
            return Err(format!("{diagonals} diagonals, {} expected", offsets.len()).into());
        }
        Ok((data.values::<T>(budget)?, width))
    })?;
    let count = values.iter().filter(|value| **value != T::ZERO).count();
    let whole = |reason| Fault::member("data", reason);
    let mut entries = room::<T>(count, &mut archive.budget)?;
    let lines = values.chunks(width.max(1)).zip(&offsets);
    for (diagonal, &offset) in lines {
        for (col, &value) in diagonal.iter().enumerate().take(cols) {
            let row = col as i128 - offset;
            if value != T::ZERO && (0..rows as i128).contains(&row) {
                entries.push(((row as u64) << 32 | col as u64, value));
            }
        }
    }
    archive.budget.take::<(u64, T)>(count).map_err(whole)?;
    Ok((entries, (count * size_of::<(u64, T)>()) as u64))
}

/// Reads the distinct offsets of the diagonals. 0 is the main diagonal; diagonals above it are positive.
fn offsets(archive: &mut Archive<impl Read + Seek + Clone>) -> Result<Vec<i128>, Fault> {
    let mut offsets = Vec::new();
    archive.member("offsets", |mut array, budget| {
        if array.shape.len() != 1 {
            return Err(wrong_order(1, &array.shape));
        }
        budget.take::<[i128; 2]>(array.len())?;
        array.indices(budget, |offset| {
            offsets.push(offset);
            Ok(())
        })
    })?;
    let mut sorted = offsets.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Fault::member("offsets", format!("diagonal {} is given twice", pair[0]))),
        None => Ok(offsets),
    }
}
