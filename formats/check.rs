//! Validation shared by the constructors. Each function is parallel and makes one pass. The error reports the first
//! invalid position.

use rayon::prelude::*;

use crate::PAD;
pub(crate) use crate::allocate::{reserved, zeroed};
use crate::error::*;

/// Maximum of slots and extents: they must fit the index type of the device.
pub(crate) const LIMIT: usize = u32::MAX as usize;

const CHUNK: usize = 1 << 16;

/// Validates an extent of a tensor.
pub(crate) fn extent(what: &'static str, n: usize) -> Result<()> {
    fits(what, n as u128).map(|_| ())
}

/// Validates the extents of a matrix.
pub(crate) fn matrix(rows: usize, cols: usize) -> Result<()> {
    extent("rows", rows)?;
    extent("columns", cols)
}

/// Returns `n` as usize if it fits u32.
pub(crate) fn fits(what: &'static str, n: u128) -> Result<usize> {
    at_most(what, n, LIMIT as u128).map(|()| n as usize)
}

/// Validates that a count does not exceed a limit of its format.
pub(crate) fn at_most(what: &'static str, value: u128, limit: u128) -> Result<()> {
    if value > limit { Err(FormatError::Overflow { what, value, limit }) } else { Ok(()) }
}

/// Returns the product of the factors if it fits u32.
pub(crate) fn product(what: &'static str, factors: &[usize]) -> Result<usize> {
    fits(what, factors.iter().fold(1u128, |n, &f| n.saturating_mul(f as u128)))
}

/// Validates a block or group size, which must be at least 1.
pub(crate) fn positive(what: &'static str, n: usize) -> Result<()> {
    if n == 0 {
        return Err(shape(what, 0, "at least 1"));
    }
    extent(what, n)
}

/// Validates a threshold, which must be at least 0 and not NaN.
pub(crate) fn threshold(what: &'static str, threshold: f64) -> Result<()> {
    if threshold >= 0.0 { Ok(()) } else { Err(shape(what, threshold, "at least 0")) }
}

/// Validates both extents of a block.
pub(crate) fn block(block: (usize, usize)) -> Result<()> {
    positive("block rows", block.0)?;
    positive("block columns", block.1)
}

pub(crate) fn length(array: &'static str, found: usize, expected: usize) -> Result<()> {
    if found == expected { Ok(()) } else { Err(FormatError::Length { array, found, expected }) }
}

/// Error of an extent, a size or a rank.
pub(crate) fn shape(
    what: &'static str,
    found: impl ToString,
    expected: impl Into<String>,
) -> FormatError {
    FormatError::Shape { what, found: found.to_string(), expected: expected.into() }
}

/// Validates a fraction, which must be from 0 to 1.
pub(crate) fn fraction(what: &'static str, fraction: f64) -> Result<()> {
    if (0.0..=1.0).contains(&fraction) { Ok(()) } else { Err(shape(what, fraction, "0 to 1")) }
}

pub(crate) fn invalid(
    array: &'static str,
    position: usize,
    value: u32,
    bound: usize,
) -> FormatError {
    FormatError::InvalidIndex { array, position, value: value.into(), bound: bound as u64 }
}

pub(crate) fn order(
    array: &'static str,
    position: usize,
    previous: u32,
    value: u32,
) -> FormatError {
    FormatError::Order { array, position, previous: previous.into(), value: value.into() }
}

pub(crate) fn first(error: Option<FormatError>) -> Result<()> {
    error.map_or(Ok(()), Err)
}

/// Validates that every element is below the bound.
pub(crate) fn below(array: &'static str, data: &[u32], bound: usize) -> Result<()> {
    first(data.par_chunks(CHUNK).enumerate().find_map_first(|(c, chunk)| {
        // The maximum vectorizes. The search for the position runs only if there is an error.
        let max = chunk.iter().copied().max().unwrap_or(0) as usize;
        if max < bound {
            return None;
        }
        let at = chunk.iter().position(|&v| v as usize >= bound)?;
        Some(invalid(array, c * CHUNK + at, chunk[at], bound))
    }))
}

/// Validates that the elements do not descend.
pub(crate) fn ascending(array: &'static str, data: &[u32]) -> Result<()> {
    first((0..data.len().div_ceil(CHUNK)).into_par_iter().find_map_first(|c| {
        let start = c * CHUNK;
        let part = &data[start..data.len().min(start + CHUNK + 1)];
        let at = part.windows(2).position(|w| w[0] > w[1])?;
        Some(order(array, start + at + 1, part[at], part[at + 1]))
    }))
}

/// Validates offsets of `rows` rows into an array of `len` elements: they start at 0, do not descend, and end at `len`.
pub(crate) fn offsets(offsets: &[u32], rows: usize, array: &'static str, len: usize) -> Result<()> {
    length("offsets", offsets.len(), rows + 1)?;
    if offsets[0] != 0 {
        return Err(invalid("offsets", 0, offsets[0], 1));
    }
    ascending("offsets", offsets)?;
    length(array, len, offsets[rows] as usize)
}

/// Validates that the elements of every row are strictly ascending and below the bound. The offsets must be valid.
pub(crate) fn rows_ascend(
    offsets: &[u32],
    array: &'static str,
    data: &[u32],
    bound: usize,
) -> Result<()> {
    first(offsets.par_windows(2).with_min_len(1024).find_map_first(|w| {
        let start = w[0] as usize;
        let row = &data[start..w[1] as usize];
        // In an ascending row, only the last element has to be compared with the bound.
        let good = row.last().is_none_or(|&last| (last as usize) < bound)
            && row.windows(2).all(|w| w[0] < w[1]);
        if good { None } else { bad_entry(array, start, row, bound) }
    }))
}

fn bad_entry(array: &'static str, start: usize, row: &[u32], bound: usize) -> Option<FormatError> {
    (0..row.len()).find_map(|i| {
        if row[i] as usize >= bound {
            Some(invalid(array, start + i, row[i], bound))
        } else if i > 0 && row[i - 1] >= row[i] {
            Some(order(array, start + i, row[i - 1], row[i]))
        } else {
            None
        }
    })
}

/// Number of slots that are not padding.
pub(crate) fn entries(slots: &[u32]) -> usize {
    slots.par_iter().with_min_len(CHUNK).filter(|&&c| c != PAD).count()
}

/// Validates rows of `width` slots: entries are strictly ascending and below the bound, followed by padding. Returns
/// the number of entries.
pub(crate) fn padded_rows(
    array: &'static str,
    data: &[u32],
    width: usize,
    bound: usize,
) -> Result<usize> {
    if width == 0 {
        return Ok(0);
    }
    let entries = |row: &[u32]| row.iter().rposition(|&c| c != PAD).map_or(0, |last| last + 1);
    let rows = || data.par_chunks_exact(width).with_min_len(1024);
    first(
        rows()
            .enumerate()
            .find_map_first(|(r, row)| bad_entry(array, r * width, &row[..entries(row)], bound)),
    )?;
    Ok(rows().map(entries).sum())
}

/// First axis on which entry `b` precedes entry `a`, or the last axis if both entries are equal.
fn descends(axes: &[&[u32]], a: usize, b: usize) -> Option<usize> {
    for (axis, data) in axes.iter().enumerate() {
        if data[a] < data[b] {
            return None;
        }
        if data[a] > data[b] {
            return Some(axis);
        }
    }
    Some(axes.len() - 1)
}

/// Validates that entries are in strictly ascending lexicographic order. All axes have the same length.
pub(crate) fn lexicographic(names: &[&'static str], axes: &[&[u32]]) -> Result<()> {
    const STEP: usize = 4096;
    let steps = axes[0].len().saturating_sub(1).div_ceil(STEP);
    let bad = |p: usize| {
        let axis = descends(axes, p - 1, p)?;
        Some(order(names[axis], p, axes[axis][p - 1], axes[axis][p]))
    };
    first((0..steps).into_par_iter().with_min_len(16).find_map_first(|step| {
        let start = step * STEP;
        // The loop runs over the axes from the last, without branches, so that it vectorizes.
        let mut ascends = [false; STEP];
        let mut len = 0;
        for data in axes.iter().rev() {
            let part = &data[start..data.len().min(start + STEP + 1)];
            len = part.len() - 1;
            for (yes, (a, b)) in ascends.iter_mut().zip(part.iter().zip(&part[1..])) {
                *yes = (a < b) | ((a == b) & *yes);
            }
        }
        let at = ascends[..len].iter().position(|&yes| !yes)?;
        bad(start + at + 1)
    }))
}

/// Index arrays of a grouped format.
pub(crate) struct Groups<'a> {
    pub(crate) index_name: &'static str,
    pub(crate) index: &'a [u32],
    pub(crate) index_bound: usize,
    pub(crate) names: &'a [&'static str],
    pub(crate) others: &'a [&'a [u32]],
    pub(crate) bounds: &'a [usize],
    pub(crate) group: usize,
}

impl Groups<'_> {
    /// Validates all arrays and returns the number of entries that are not padding.
    pub(crate) fn check(&self) -> Result<usize> {
        below(self.index_name, self.index, self.index_bound)?;
        ascending(self.index_name, self.index)?;
        let bad = |i| self.bad_group(i);
        let groups = self.index.len();
        first((0..groups).into_par_iter().with_min_len(1024).find_map_first(bad))?;
        let count = |i| self.filled(i);
        Ok((0..groups).into_par_iter().with_min_len(1024).map(count).sum())
    }

    /// Entries of group `i` before its first padding slot.
    fn filled(&self, i: usize) -> usize {
        let slots = &self.others[0][i * self.group..(i + 1) * self.group];
        // Padding is at the end, so the search from the end is short.
        slots.iter().rposition(|&c| c != PAD).map_or(0, |last| last + 1)
    }

    fn bad_group(&self, i: usize) -> Option<FormatError> {
        let start = i * self.group;
        let more = self.index.get(i + 1) == Some(&self.index[i]);
        // The first slot contains an entry. If the run continues, all slots of the group do.
        let needed = if more { self.group } else { self.filled(i).max(1) };
        for slot in start..start + needed {
            for ((data, &bound), name) in self.others.iter().zip(self.bounds).zip(self.names) {
                if data[slot] as usize >= bound {
                    return Some(invalid(name, slot, data[slot], bound));
                }
            }
            let run_goes_on = slot > start || (i > 0 && self.index[i - 1] == self.index[i]);
            if run_goes_on && let Some(axis) = descends(self.others, slot - 1, slot) {
                let data = self.others[axis];
                return Some(order(self.names[axis], slot, data[slot - 1], data[slot]));
            }
        }
        // Slots after the last entry must be padding on all axes. An entry on another axis has no coordinate on the
        // first.
        let rest = start + needed..start + self.group;
        rest.into_iter()
            .find(|&slot| self.others.iter().any(|data| data[slot] != PAD))
            .map(|slot| invalid(self.names[0], slot, PAD, self.bounds[0]))
    }
}
