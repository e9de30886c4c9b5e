//! The entries (or blocks) of each row as one run of slots: what all row-ordered formats have in common.

use einsparse_formats::{AnySparse, Element, PAD, Role};
use rayon::prelude::*;

use crate::formats::Format;

/// Slots of each row, without padding, and the column of every slot.
pub(super) struct Rows<'a> {
    pub spans: Vec<(u32, u32)>,
    pub columns: &'a [u32],
}

impl<'a> Rows<'a> {
    /// `None` for formats that are not ordered by row.
    pub fn new<T: Element>(tensor: &'a AnySparse<T>) -> Option<Self> {
        let (block, by_row): (usize, bool) = match tensor.format() {
            Format::Bsr { block }
            | Format::BlockCoo { block }
            | Format::BlockGroupCoo { block, .. } => (block.0, true),
            Format::GroupCoo { axis, .. } => (1, axis == 0),
            Format::Coo | Format::Csr | Format::Ell => (1, true),
            Format::Csc => (1, false),
        };
        if !by_row {
            return None;
        }
        let arrays = tensor.arrays();
        let array = |role: Role| arrays.iter().find(|a| a.role == role).map(|a| a.data);
        let columns = array(Role::Coordinate { axis: 1 })?;
        let rows = tensor.shape().first()?.div_ceil(block);
        let offsets = array(Role::Offsets { axis: 0 });
        let names = array(Role::Coordinate { axis: 0 });
        let span = |row: usize| match (offsets, names) {
            (Some(offsets), _) => (offsets[row] as usize, offsets[row + 1] as usize),
            (None, Some(names)) => named(names, columns.len(), row),
            (None, None) => (columns.len() / rows * row, columns.len() / rows * (row + 1)),
        };
        let trimmed = |row| {
            let (start, end) = span(row);
            // Padding stands at the end of a row, and PAD is greater than any column.
            let last = columns[start..end]
                .iter()
                .rev()
                .take_while(|c| **c == PAD)
                .count();
            (start as u32, (end - last) as u32)
        };
        let spans = (0..rows)
            .into_par_iter()
            .with_min_len(1024)
            .map(trimmed)
            .collect();
        Some(Rows { spans, columns })
    }

    /// Rows cut into pieces of about the same number of slots.
    pub fn pieces(&self) -> Vec<std::ops::Range<usize>> {
        const PIECES: usize = 256;
        // A row costs something by itself: its output is written.
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

/// Slots of `row` where each entry, or each group, names its row in ascending order.
fn named(names: &[u32], slots: usize, row: usize) -> (usize, usize) {
    if names.is_empty() {
        return (0, 0);
    }
    let group = slots / names.len();
    let start = names.partition_point(|&n| (n as usize) < row);
    let end = start + names[start..].partition_point(|&n| n as usize == row);
    (start * group, end * group)
}
