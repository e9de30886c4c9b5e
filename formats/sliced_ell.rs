//! SELL-C-sigma: rows sorted by length within windows, and cut into slices that are stored column by column (Kreutzer,
//! Hager, Wellein, Fehske and Bishop, SIAM J. Sci. Comput. 36(5), 2014). Here C = 32, and columns are local to a window
//! of K that moves with the slice, so that they fit 16 bits and the window's rows of B fit shared memory.

use rayon::prelude::*;

use crate::pattern::matrix;
use crate::{Format, FormatError, IndexArray, PAD, Pattern, Role, Sparse, check};

/// Rows of a slice, C.
pub(crate) const SLICE: usize = 32;
/// Slots of a row in a chunk.
pub(crate) const CHUNK: usize = 4;
/// Slots of a chunk.
pub(crate) const CHUNK_SLOTS: usize = SLICE * CHUNK;
/// Rows that are sorted together, sigma.
pub(crate) const SORTED: usize = 4096;
/// Columns of a K-tile: windows begin and end with one.
pub(crate) const K_TILE: usize = 64;
/// K-tiles that a window spans at most.
pub(crate) const REACH: usize = 24;
/// What the column of a slot without an entry holds.
pub(crate) const NO_ENTRY: u32 = 0xffff;

/// Where the entries of a sliced ELLPACK matrix are: `C[AM[s,l],n] += AV[c,l,q] * B[AK[c,l,q],n]` for the chunks `c` of
/// slice `s`.
///
/// - Rows are sorted by length, longest first and equal ones in order, within windows of 4096 rows. 32 of them that
///   follow each other are a slice. Rows: u32 `[slices, 32]`, [`PAD`] behind the last.
/// - A slice is a run of chunks of 32 x 4 slots: the next up to 4 entries of every row, as far as they lie within 24
///   K-tiles of 64 columns from the first that any of its rows still needs. Offsets: u32 `[slices + 1]`, the first
///   chunk of each.
/// - Windows: u32 `[chunks, 2]`, the first K-tile of a chunk and one past the last that it needs.
/// - Columns: u16 `[chunks, 32, 4]`, two in a word, the first in its low half; counted from the window's first column.
///   A slot without an entry holds 0xffff, and stands behind the row's entries in its chunk.
/// - Values: `[chunks, 32, 4]`.
///
/// 6 bytes an f32 entry, and what rows of unequal length and rows that run ahead of the window leave empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicedEllPattern {
    shape: [usize; 2],
    rows: Vec<u32>,
    offsets: Vec<u32>,
    windows: Vec<u32>,
    columns: Vec<u32>,
    nnz: usize,
}

/// A sliced ELLPACK matrix.
pub type SlicedEll<T> = Sparse<SlicedEllPattern, T>;

fn wrong(array: &'static str, position: usize, value: u32, bound: usize) -> FormatError {
    FormatError::InvalidIndex { array, position, value: value.into(), bound: bound as u64 }
}

impl SlicedEllPattern {
    /// Rows of a slice.
    pub const SLICE: usize = SLICE;
    /// Slots of a row in a chunk.
    pub const CHUNK: usize = CHUNK;
    /// Columns of a K-tile.
    pub const K_TILE: usize = K_TILE;
    /// K-tiles that a window spans at most.
    pub const REACH: usize = REACH;

    /// Checks and takes rows, first chunks, windows and columns, two to a word.
    ///
    /// # Errors
    /// If the slots do not fit u32, a length is wrong, a row is missing or there twice, offsets descend, a window spans
    /// more than 24 tiles or not what its columns need, the columns of a row do not ascend or lie outside, or padding
    /// stands in front of an entry. The order of rows is free.
    pub fn new(
        rows: usize,
        cols: usize,
        order: Vec<u32>,
        offsets: Vec<u32>,
        windows: Vec<u32>,
        columns: Vec<u32>,
    ) -> Result<Self, FormatError> {
        check::matrix(rows, cols)?;
        let slices = rows.div_ceil(SLICE);
        check::length("rows", order.len(), slices * SLICE)?;
        check::length("windows", windows.len() % 2, 0)?;
        let chunks = windows.len() / 2;
        check::product("slots", &[chunks, CHUNK_SLOTS])?;
        check::offsets(&offsets, slices, "chunks", chunks)?;
        check::length("columns", columns.len(), chunks * CHUNK_SLOTS / 2)?;
        check_order(&order, rows)?;
        let pattern = SlicedEllPattern {
            shape: [rows, cols],
            rows: order,
            offsets,
            windows,
            columns,
            nnz: 0,
        };
        let nnz = (0..slices)
            .into_par_iter()
            .map(|slice| pattern.check_slice(slice))
            .try_reduce(|| 0, |a, b| Ok(a + b))?;
        Ok(SlicedEllPattern { nnz, ..pattern })
    }

    /// Takes the arrays unchecked.
    ///
    /// # Safety
    /// [`SlicedEllPattern::new`] would accept the arguments, and `nnz` slots hold an entry.
    pub unsafe fn new_unchecked(
        shape: [usize; 2],
        rows: Vec<u32>,
        offsets: Vec<u32>,
        windows: Vec<u32>,
        columns: Vec<u32>,
        nnz: usize,
    ) -> Self {
        SlicedEllPattern { shape, rows, offsets, windows, columns, nnz }
    }

    /// Entries of a slice, if it is in order.
    fn check_slice(&self, slice: usize) -> Result<usize, FormatError> {
        let mut last = [None; SLICE];
        let mut found = 0;
        for chunk in self.chunks(slice) {
            let [first, end] = self.window(chunk);
            let tiles = self.cols().div_ceil(K_TILE);
            let bound = tiles.min(first as usize + REACH);
            if first > end || end as usize > bound {
                return Err(wrong("windows", chunk * 2 + 1, end, bound + 1));
            }
            for (lane, last) in last.iter_mut().enumerate() {
                let mut ended = self.rows[slice * SLICE + lane] == PAD;
                for step in 0..CHUNK {
                    let slot = (chunk * SLICE + lane) * CHUNK + step;
                    let Some(column) = self.column_in(slot, first) else {
                        ended = true;
                        continue;
                    };
                    let bound = self.cols().min(end as usize * K_TILE);
                    if ended || column as usize >= bound {
                        return Err(wrong("columns", slot, column, if ended { 0 } else { bound }));
                    }
                    if let Some(previous) = last.filter(|&p| p >= column) {
                        return Err(FormatError::Order {
                            array: "columns",
                            position: slot,
                            previous: u64::from(previous),
                            value: u64::from(column),
                        });
                    }
                    *last = Some(column);
                    found += 1;
                }
            }
        }
        Ok(found)
    }

    /// The column of a slot of a chunk whose window begins with tile `first`; `None` without an entry.
    fn column_in(&self, slot: usize, first: u32) -> Option<u32> {
        let local = self.columns[slot / 2] >> (slot % 2 * 16) & 0xffff;
        (local != NO_ENTRY).then(|| first.saturating_mul(K_TILE as u32).saturating_add(local))
    }

    /// The row of every lane of every slice, `[slices, 32]`, [`PAD`] behind the last.
    pub fn order(&self) -> &[u32] {
        &self.rows
    }

    /// The chunks of a slice.
    ///
    /// # Panics
    /// If there is no such slice.
    pub fn chunks(&self, slice: usize) -> std::ops::Range<usize> {
        self.offsets[slice] as usize..self.offsets[slice + 1] as usize
    }

    fn window(&self, chunk: usize) -> [u32; 2] {
        [self.windows[chunk * 2], self.windows[chunk * 2 + 1]]
    }

    /// The column of value slot `slot`; [`PAD`] where there is no entry.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn column(&self, slot: usize) -> u32 {
        let [first, _] = self.window(slot / CHUNK_SLOTS);
        self.column_in(slot, first).unwrap_or(PAD)
    }

    /// Row and column of every value slot, [`PAD`] where there is no entry: the pattern as coordinates.
    pub fn unpacked(&self) -> [Vec<u32>; 2] {
        let columns: Vec<u32> = (0..self.slots())
            .into_par_iter()
            .with_min_len(4096)
            .map(|slot| self.column(slot))
            .collect();
        let mut rows = vec![PAD; columns.len()];
        for slice in 0..self.offsets.len() - 1 {
            let chunks = self.chunks(slice);
            let slots = chunks.start * CHUNK_SLOTS..chunks.end * CHUNK_SLOTS;
            for slot in slots.filter(|&slot| columns[slot] != PAD) {
                rows[slot] = self.rows[slice * SLICE + slot / CHUNK % SLICE];
            }
        }
        [rows, columns]
    }
}

/// Every row once, and nothing behind the last.
fn check_order(order: &[u32], rows: usize) -> Result<(), FormatError> {
    let mut seen = vec![false; rows];
    for (position, &row) in order.iter().enumerate() {
        let padding = position >= rows;
        let known = (row as usize) < rows && !std::mem::replace(&mut seen[row as usize], true);
        if padding != (row == PAD) || (!padding && !known) {
            return Err(wrong("rows", position, row, if padding { 0 } else { rows }));
        }
    }
    Ok(())
}

matrix! { SlicedEllPattern {
    /// The first chunk of each slice, one more than slices.
    offsets,
    /// First K-tile of each chunk, and one past the last that it needs, `[chunks, 2]`.
    windows,
    /// The local columns, two to a word, `[chunks, 32, 2]`.
    columns,
} }

impl Pattern for SlicedEllPattern {
    fn format(&self) -> Format {
        Format::SlicedEll
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn nnz(&self) -> usize {
        self.nnz
    }

    fn value_shape(&self) -> Vec<usize> {
        vec![self.windows.len() / 2, SLICE, CHUNK]
    }

    fn arrays(&self) -> Vec<IndexArray<'_>> {
        let array = |role, shape: &[usize], data| IndexArray::new(role, shape, data);
        let (slices, chunks) = (self.offsets.len() - 1, self.windows.len() / 2);
        let (rows, windows) = (Role::Order { axis: 0 }, Role::Windows { axis: 1 });
        vec![
            array(rows, &[slices, SLICE], &self.rows),
            array(Role::Offsets { axis: 0 }, &[slices + 1], &self.offsets),
            array(windows, &[chunks, 2], &self.windows),
            array(Role::Positions { axis: 1 }, &[chunks, SLICE, CHUNK / 2], &self.columns),
        ]
    }
}
