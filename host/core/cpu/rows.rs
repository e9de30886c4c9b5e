//! Nonzeros (or blocks) of each row as one run of slots, for all formats that are ordered by row.

use std::borrow::Cow;

use einsparse_formats::{AnyPattern, PAD, Role, allocate};

use crate::error::Result;
use crate::formats::Format;

/// Slots of each row without padding, and the column of every slot.
pub(super) struct Rows<'a> {
    pub spans: Vec<(u32, u32)>,
    pub columns: &'a [u32],
}

impl<'a> Rows<'a> {
    /// Returns `None` for formats that are not ordered by row.
    ///
    /// # Errors
    /// An error if the spans of all rows do not fit in memory.
    pub fn new(pattern: AnyPattern<'a>) -> Result<Option<Self>> {
        let (block, by_row): (usize, bool) = match pattern.format() {
            Format::Bsr { block }
            | Format::BlockCoo { block }
            | Format::BlockGroupCoo { block, .. } => (block.0, true),
            Format::GroupCoo { axis, .. } => (1, axis == 0),
            Format::Coo | Format::Csr | Format::Ell | Format::HybridGroupCoo => (1, true),
            Format::Csc
            | Format::Nm { .. }
            | Format::Bitmap
            | Format::Bytemap
            | Format::SlicedEll => (1, false),
        };
        if !by_row {
            return Ok(None);
        }
        let arrays = pattern.arrays();
        let array = |role: Role| arrays.iter().find(|a| a.role == role).map(|a| a.data);
        let (Some(columns), Some(rows)) =
            (array(Role::Coordinate { axis: 1 }), pattern.shape().first())
        else {
            return Ok(None);
        };
        let rows = rows.div_ceil(block);
        if let AnyPattern::HybridGroupCoo(a) = pattern {
            let mut spans = a.spans()?;
            spans.iter_mut().for_each(|(start, end)| *end += *start);
            return Ok(Some(Rows { spans, columns }));
        }
        let starts = match (array(Role::Offsets { axis: 0 }), array(Role::Coordinate { axis: 0 })) {
            (Some(offsets), _) => Cow::Borrowed(offsets),
            (None, Some(names)) => Cow::Owned(starts(names, columns.len(), rows)?),
            (None, None) => {
                let width = columns.len() / rows.max(1);
                Cow::Owned(allocate::each("starts of rows", rows + 1, &|row| (row * width) as u32)?)
            }
        };
        let span = |row: &[u32]| {
            // Padding is at the end of a row, and PAD is greater than any column.
            let slots = &columns[row[0] as usize..row[1] as usize];
            let len = match slots.last() {
                Some(&PAD) => slots.partition_point(|&c| c != PAD) as u32,
                _ => slots.len() as u32,
            };
            (row[0], row[0] + len)
        };
        let spans = allocate::each("spans of rows", rows, &|row| span(&starts[row..row + 2]))?;
        Ok(Some(Rows { spans, columns }))
    }

    /// Splits rows into pieces with about equal numbers of slots.
    pub fn pieces(&self) -> Vec<std::ops::Range<usize>> {
        const PIECES: usize = 256;
        // Constant cost per row: its output is written.
        let cost = |&(start, end): &(u32, u32)| (end - start) as usize + 4;
        let target = (self.spans.iter().map(cost).sum::<usize>() / PIECES).max(64);
        let mut pieces = Vec::new();
        let (mut first, mut sum) = (0, 0);
        for (row, span) in self.spans.iter().enumerate() {
            sum += cost(span);
            if sum >= target || row + 1 == self.spans.len() {
                pieces.push(first..row + 1);
                (first, sum) = (row + 1, 0);
            }
        }
        pieces
    }
}

/// First slot of each row, if each nonzero or group states its row, in ascending order.
fn starts(names: &[u32], slots: usize, rows: usize) -> Result<Vec<u32>> {
    let group = slots / names.len().max(1);
    let mut starts = allocate::reserved("starts of rows", rows + 1)?;
    for (at, &row) in names.iter().enumerate() {
        while starts.len() <= row as usize {
            starts.push((at * group) as u32);
        }
    }
    starts.resize(rows + 1, slots as u32);
    Ok(starts)
}
