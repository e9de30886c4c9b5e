//! Sliced ELLPACK (SELL-C-sigma): rows are sorted by length within windows, and divided into slices that are stored
//! column by column (Kreutzer, Hager, Wellein, Fehske and Bishop, SIAM J. Sci. Comput. 36(5), 2014). Here C = 32.
//! Columns are relative to a window of K that moves along the slice. Columns therefore fit 16 bits, and the window's
//! rows of B fit shared memory.

use rayon::prelude::*;

use crate::check::invalid;
use crate::error::*;
use crate::pattern::accessors;
use crate::{Format, IndexArray, PAD, Pattern, Role, Sparse, check};

/// Rows per slice, C.
pub(crate) const SLICE: usize = 32;
/// Slots per row of a chunk.
pub(crate) const CHUNK: usize = 4;
/// Slots per chunk.
pub(crate) const CHUNK_SLOTS: usize = SLICE * CHUNK;
/// Rows that are sorted together, sigma.
pub(crate) const SORTED: usize = 4096;
/// Columns of a K-tile. Windows begin and end at tile boundaries.
pub(crate) const K_TILE: usize = 64;
/// Maximum number of K-tiles per window.
pub(crate) const REACH: usize = 24;
/// Column of a slot without entry.
pub(crate) const NO_ENTRY: u32 = 0xffff;

/// Pattern of a sliced ELLPACK matrix: `C[AM[s,l],n] += AV[c,l,q] * B[AK[c,l,q],n]` for the chunks `c` of slice `s`.
///
/// - Rows: u32 `[slices, 32]`. Rows are sorted by length within windows of 4096 rows. The longest row is first; rows of
///   equal length keep their order. 32 consecutive rows are a slice. [`PAD`] follows the last row.
/// - Offsets: u32 `[slices + 1]`, the first chunk of each slice. A slice is a sequence of chunks of 32 x 4 slots. A
///   chunk contains the next up to 4 entries of every row, if they are within 24 K-tiles of 64 columns. The first of
///   these K-tiles is the first one that any row of the slice still needs.
/// - Windows: u32 `[chunks, 2]`, the first K-tile of a chunk and the end of its K-tiles.
/// - Columns: u16 `[chunks, 32, 4]`, two per word, the first in the low half. They are relative to the first column of
///   the window. A slot without entry contains 0xffff and follows the entries of its row in the chunk.
/// - Values: `[chunks, 32, 4]`.
///
/// An f32 entry occupies 6 bytes. Empty slots come from rows of unequal length, and from rows whose next entry is past
/// the window.
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

impl SlicedEllPattern {
    /// Rows per slice.
    pub const SLICE: usize = SLICE;
    /// Slots per row of a chunk.
    pub const CHUNK: usize = CHUNK;
    /// Columns of a K-tile.
    pub const K_TILE: usize = K_TILE;
    /// Maximum number of K-tiles per window.
    pub const REACH: usize = REACH;

    /// Validates and stores the row order, the chunk offsets, the windows and the columns (two per word).
    ///
    /// # Errors
    /// Returns an error if the number of slots exceeds u32, a length is wrong, a row is missing or occurs twice,
    /// offsets descend, a window spans more than 24 tiles or does not contain its columns, the columns of a row do not
    /// ascend or are out of bounds, or padding precedes an entry. Any order of the rows is accepted.
    pub fn new(
        rows: usize,
        cols: usize,
        order: Vec<u32>,
        offsets: Vec<u32>,
        windows: Vec<u32>,
        columns: Vec<u32>,
    ) -> Result<Self> {
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

    /// Stores the arrays without validation.
    ///
    /// # Safety
    /// [`SlicedEllPattern::new`] would accept the arguments, and `nnz` slots contain an entry.
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

    /// Returns the number of entries of a slice, or an error if the slice is invalid.
    fn check_slice(&self, slice: usize) -> Result<usize> {
        let mut last = [None; SLICE];
        let mut found = 0;
        for chunk in self.chunks(slice) {
            let [first, end] = self.window(chunk);
            let tiles = self.cols().div_ceil(K_TILE);
            let bound = tiles.min(first as usize + REACH);
            if first > end || end as usize > bound {
                return Err(invalid("windows", chunk * 2 + 1, end, bound + 1));
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
                        return Err(invalid(
                            "columns",
                            slot,
                            column,
                            if ended { 0 } else { bound },
                        ));
                    }
                    if let Some(previous) = last.filter(|&p| p >= column) {
                        return Err(check::order("columns", slot, previous, column));
                    }
                    *last = Some(column);
                    found += 1;
                }
            }
        }
        Ok(found)
    }

    /// Column of a slot of a chunk whose window begins at tile `first`, or `None` without an entry.
    fn column_in(&self, slot: usize, first: u32) -> Option<u32> {
        let local = self.columns[slot / 2] >> (slot % 2 * 16) & 0xffff;
        (local != NO_ENTRY).then(|| first.saturating_mul(K_TILE as u32).saturating_add(local))
    }

    /// Row of every lane of every slice, `[slices, 32]`. [`PAD`] follows the last row.
    pub fn order(&self) -> &[u32] {
        &self.rows
    }

    /// Range of the chunks of a slice.
    ///
    /// # Panics
    /// Panics if `slice` is out of range.
    pub fn chunks(&self, slice: usize) -> std::ops::Range<usize> {
        self.offsets[slice] as usize..self.offsets[slice + 1] as usize
    }

    fn window(&self, chunk: usize) -> [u32; 2] {
        [self.windows[chunk * 2], self.windows[chunk * 2 + 1]]
    }

    /// Column of value slot `slot`, or [`PAD`] without an entry.
    ///
    /// # Panics
    /// Panics if `slot` is out of range.
    pub fn column(&self, slot: usize) -> u32 {
        let [first, _] = self.window(slot / CHUNK_SLOTS);
        self.column_in(slot, first).unwrap_or(PAD)
    }

    /// Row and column of every value slot as coordinates. Both are [`PAD`] for a slot without entry.
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

/// Validates that every row occurs once and that only padding follows the last row.
fn check_order(order: &[u32], rows: usize) -> Result<()> {
    let mut seen = vec![false; rows];
    for (position, &row) in order.iter().enumerate() {
        let padding = position >= rows;
        let known = (row as usize) < rows && !std::mem::replace(&mut seen[row as usize], true);
        if padding != (row == PAD) || (!padding && !known) {
            return Err(invalid("rows", position, row, if padding { 0 } else { rows }));
        }
    }
    Ok(())
}

accessors! { SlicedEllPattern {
    /// First chunk of each slice, and the end of the last one: one more than slices.
    offsets: u32,
    /// First K-tile of each chunk and the end of its K-tiles, `[chunks, 2]`.
    windows: u32,
    /// Columns relative to the window, two per word, `[chunks, 32, 2]`.
    columns: u32,
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
