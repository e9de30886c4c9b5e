//! Conversions of CSR and dense to bitmaps, and back to CSR. Panels (256 rows) are contiguous in every array, and each
//! panel is one task.

use super::tasks::prefix_sum;
use super::{cost, matrix};
use crate::bitmap::{
    ALIGN, BITS, Grid, PANEL, TILE, WORDS, bit_of, checked_grid, for_each_bit, half_offsets,
    middles, of_half, ones, units,
};
use crate::error::*;
use crate::parallel;
use crate::{
    AsSparse, Bitmap, BitmapPattern, Csr, CsrPattern, Dense, Element, Format, Sparse, allocate,
    check,
};

/// Rows per panel.
const ROWS: usize = PANEL * TILE;

/// Splits a slice into the parts of the panels. `len` returns the length of the part of a panel.
pub(super) fn cut_panels<T>(
    mut slice: &mut [T],
    panels: usize,
    len: impl Fn(usize) -> usize,
) -> Result<Vec<&mut [T]>> {
    let next = |panel| {
        let (part, rest) = std::mem::take(&mut slice).split_at_mut(len(panel));
        slice = rest;
        part
    };
    allocate::collected("slices", (0..panels).map(next))
}

/// Sets the bits of the entries of a panel, and the middles of each of its tiles.
fn mark(csr: &CsrPattern, grid: Grid, panel: usize, words: &mut [u32]) {
    let height = grid.height(panel);
    for row in panel * ROWS..((panel + 1) * ROWS).min(csr.rows()) {
        let down = row % ROWS / TILE;
        for &col in &csr.columns()[csr.row(row)] {
            let tile = col as usize / TILE * height + down;
            let (word, bit) = bit_of(row % TILE, col as usize % TILE);
            words[tile * WORDS + word] |= 1 << bit;
        }
    }
    let (tiles, _) = words.as_chunks_mut::<WORDS>();
    tiles.iter_mut().for_each(|tile| count_halves(tile));
}

/// Writes the middles of a tile after its bits.
fn count_halves(tile: &mut [u32]) {
    let middles = middles(&half_offsets(&tile[..BITS]));
    tile[BITS..].copy_from_slice(&middles);
}

/// Start of the values of each tile.
fn starts_of(words: &[u32]) -> Result<Vec<u32>> {
    let entries = |tile: usize| units(ones(&words[tile * WORDS..][..BITS]));
    let counts = allocate::each("counts of tiles", words.len() / WORDS, &entries)?;
    prefix_sum("slots", counts.into_iter())
}

/// Number of values of a tile before those of each lane, half by half.
fn lane_offsets(tile: &[u32]) -> [u16; 8 * BITS] {
    let mut offsets = [0; 8 * BITS];
    let mut before = 0;
    for at in 0..32 {
        let (slab, half) = (at / 8, at % 8);
        for lane in 0..32 {
            offsets[at * 32 + lane] = before;
            before += of_half(tile[slab * 32 + lane], half).count_ones() as u16;
        }
    }
    offsets
}

/// Converts CSR to a bitmap. Every entry gets a bit, including stored zeros.
///
/// # Errors
/// Returns an error if the number of slots or words exceeds u32, or allocation fails.
pub fn csr_to_bitmap<T: Element>(csr: &Csr<T>) -> Result<Bitmap<T>> {
    cost::from_csr(csr, Format::Bitmap)?;
    let p = csr.pattern();
    let grid = checked_grid(p.rows(), p.cols())?;
    let panels = grid.down.div_ceil(PANEL);
    let tiles_of = |panel: usize| grid.height(panel) * grid.across;
    let mut words: Vec<u32> = check::zeroed("words", grid.tiles() * WORDS)?;
    let parts = cut_panels(&mut words, panels, |i| tiles_of(i) * WORDS)?;
    parallel::each_of(parts, &|panel, words| mark(p, grid, panel, words));
    let starts = starts_of(&words)?;
    let start = |tile: usize| starts[tile] as usize * ALIGN;
    let slots = check::product("slots", &[starts[grid.tiles()] as usize, ALIGN])?;
    let mut values: Vec<T> = check::zeroed("values", slots)?;
    let first = |panel: usize| panel * PANEL * grid.across;
    let parts =
        cut_panels(&mut values, panels, |i| start(first(i) + tiles_of(i)) - start(first(i)))?;
    parallel::each_of(parts, &|panel, values: &mut [T]| {
        let height = grid.height(panel);
        let words = &words[first(panel) * WORDS..];
        let from = start(first(panel));
        let base = first(panel);
        // Each step processes one row of tiles, so that the scratch memory is the offsets of one row of tiles.
        for down in 0..height {
            let tiles = (0..grid.across).map(|across| across * height + down);
            let offsets: Vec<_> =
                tiles.map(|tile| lane_offsets(&words[tile * WORDS..][..BITS])).collect();
            let top = panel * ROWS + down * TILE;
            for row in top..(top + TILE).min(p.rows()) {
                for e in p.row(row) {
                    let col = p.columns()[e] as usize;
                    let tile = col / TILE * height + down;
                    let (word, bit) = bit_of(row % TILE, col % TILE);
                    let half = bit % 8;
                    let here = of_half(words[tile * WORDS + word], half);
                    let first = offsets[col / TILE][(word / 32 * 8 + half) * 32 + word % 32];
                    let in_front = here & (((1 << bit) - 1) >> half);
                    let rank = first as usize + in_front.count_ones() as usize;
                    values[start(base + tile) - from + rank] = csr.values()[e];
                }
            }
        }
    });
    // SAFETY: bits are set for entries, which are in bounds. Offsets and starts were counted from the bits.
    let pattern = unsafe { BitmapPattern::new_unchecked(p.rows(), p.cols(), words, starts) };
    Sparse::new(pattern, values)
}

/// Converts the nonzeros of a dense matrix to a bitmap.
///
/// # Errors
/// Returns the errors of [`csr_to_bitmap`], and an error if the tensor is not a matrix.
pub fn dense_to_bitmap<T: Element>(dense: &Dense<T>) -> Result<Bitmap<T>> {
    let (rows, cols) = matrix(dense.shape())?;
    let grid = checked_grid(rows, cols)?;
    let mut words: Vec<u32> = check::zeroed("words", grid.tiles() * WORDS)?;
    // First element of a tile, and the numbers of its rows and columns inside the matrix.
    let corner = |tile: usize| {
        let (down, across) = grid.place(tile);
        let (row, col) = (down * TILE, across * TILE);
        let inside = ((rows - row).min(TILE), (cols - col).min(TILE));
        (row * cols + col, inside)
    };
    parallel::chunks(&mut words, WORDS, &|tile, words| {
        let (first, (height, width)) = corner(tile);
        for row in 0..height {
            let line = &dense.values()[first + row * cols..][..width];
            for (col, _) in line.iter().enumerate().filter(|&(_, &v)| v != T::ZERO) {
                let (word, bit) = bit_of(row, col);
                words[word] |= 1 << bit;
            }
        }
        count_halves(words);
    });
    let starts = starts_of(&words)?;
    let slots = check::product("slots", &[starts[grid.tiles()] as usize, ALIGN])?;
    let mut values: Vec<T> = check::zeroed("values", slots)?;
    let at = |tile: usize| starts[tile] as usize * ALIGN;
    let parts = cut_panels(&mut values, grid.tiles(), |tile| at(tile + 1) - at(tile))?;
    parallel::each_of(parts, &|tile, values: &mut [T]| {
        let (first, _) = corner(tile);
        for_each_bit(&words[tile * WORDS..][..BITS], |row, col, rank| {
            values[rank] = dense.values()[first + row * cols + col];
        });
    });
    // SAFETY: bits are set for elements, which are in bounds. Offsets and starts were counted from the bits.
    let pattern = unsafe { BitmapPattern::new_unchecked(rows, cols, words, starts) };
    Sparse::new(pattern, values)
}

/// Converts tiles of `HEIGHT x WIDTH` elements to CSR. `counts` is the number of entries of each row. `spread` writes
/// the slot of every entry of a tile to the element of the entry, row by row.
///
/// # Safety
/// Slots are indices into `values`. Entries are in bounds, and each row has as many as `counts` states.
pub(super) unsafe fn tiles_to_csr<T: Element, const HEIGHT: usize, const WIDTH: usize>(
    shape: &[usize; 2],
    grid: Grid,
    counts: Vec<u32>,
    values: &[T],
    spread: &(dyn Fn(usize, &mut [u32]) + Sync),
) -> Result<Csr<T>> {
    let &[rows, cols] = shape;
    let offsets = prefix_sum("entries", counts.into_iter().map(|n| n as usize))?;
    let at = |down: usize| offsets[(down * HEIGHT).min(rows)] as usize;
    let mut columns: Vec<u32> = check::zeroed("columns", at(grid.down))?;
    let mut moved: Vec<T> = check::zeroed("values", at(grid.down))?;
    let columns_of = cut_panels(&mut columns, grid.down, |i| at(i + 1) - at(i))?;
    let moved_to = cut_panels(&mut moved, grid.down, |i| at(i + 1) - at(i))?;
    let lines = allocate::collected("slices", columns_of.into_iter().zip(moved_to))?;
    parallel::each_of(lines, &|down, (columns, moved): (&mut [u32], &mut [T])| {
        let own = down * HEIGHT..((down + 1) * HEIGHT).min(rows);
        let mut next: Vec<usize> = own.map(|row| offsets[row] as usize - at(down)).collect();
        let mut slot_at = vec![u32::MAX; HEIGHT * WIDTH];
        for across in 0..grid.across {
            slot_at.fill(u32::MAX);
            spread(grid.tile(down, across), &mut slot_at);
            for (next, line) in next.iter_mut().zip(slot_at.as_chunks::<WIDTH>().0) {
                for (col, &slot) in line.iter().enumerate().filter(|&(_, &s)| s != u32::MAX) {
                    columns[*next] = (across * WIDTH + col) as u32;
                    moved[*next] = values[slot as usize];
                    *next += 1;
                }
            }
        }
    });
    // SAFETY: columns ascend tile by tile. The caller guarantees the rest.
    let pattern = unsafe { CsrPattern::new_unchecked(rows, cols, offsets, columns) };
    Sparse::new(pattern, moved)
}

/// Converts a bitmap to CSR. Stored zeros remain entries.
///
/// # Errors
/// Returns an error if allocation fails.
pub fn bitmap_to_csr<T: Element>(bitmap: &Bitmap<T>) -> Result<Csr<T>> {
    cost::to_csr(bitmap.as_sparse())?;
    let p = bitmap.pattern();
    let spread = |tile: usize, slot_at: &mut [u32]| {
        let first = p.first_slot(tile);
        for_each_bit(p.bits(tile), |row, col, rank| {
            slot_at[row * TILE + col] = (first + rank) as u32
        });
    };
    let (shape, counts) = ([p.rows(), p.cols()], p.row_counts()?);
    // SAFETY: bits are set for entries, which are in bounds and were counted.
    unsafe { tiles_to_csr::<T, TILE, TILE>(&shape, p.grid(), counts, bitmap.values(), &spread) }
}
