//! Conversions of CSR to bytemaps, and back. Each row of tiles is one task.

use super::bitmap::{cut_panels, tiles_to_csr};
use super::cost;
use super::tasks::prefix_sum;
use crate::bytemap::{
    BANKS, CHUNK, COUNT_WORDS, TILE_COLS, TILE_ROWS, UNIT, bank_of, checked_grid, counts_of,
    for_each_chunk, units_of,
};
use crate::error::*;
use crate::parallel;
use crate::{AsSparse, Bytemap, BytemapPattern, Csr, Element, Format, Sparse, allocate, check};

/// Positions of the next entries of the banks of a tile.
struct Banks {
    /// Chunks of each bank, in order.
    chunks: Vec<[u16; BANKS]>,
    taken: [u16; BANKS],
}

impl Banks {
    fn new(counts: &[u32]) -> Banks {
        let (mut chunks, mut next) = (Vec::<[u16; BANKS]>::new(), [0; BANKS]);
        for_each_chunk(counts, |chunk, bank, _| {
            if chunks.len() <= next[bank] {
                chunks.push([0; BANKS]);
            }
            chunks[next[bank]][bank] = chunk as u16;
            next[bank] += 1;
        });
        Banks { chunks, taken: [0; BANKS] }
    }

    /// Chunk, and slot in the chunk, of the next entry of a bank.
    fn next(&mut self, bank: usize) -> (usize, usize) {
        let entry = self.taken[bank] as usize;
        self.taken[bank] += 1;
        (self.chunks[entry / CHUNK][bank] as usize, entry % CHUNK)
    }
}

/// Converts CSR to a bytemap. Every entry gets a slot, including stored zeros.
///
/// # Errors
/// Returns an error if the number of slots or counts exceeds u32, or allocation fails.
pub fn csr_to_bytemap<T: Element>(csr: &Csr<T>) -> Result<Bytemap<T>> {
    cost::from_csr(csr, Format::Bytemap)?;
    let p = csr.pattern();
    let grid = checked_grid(p.rows(), p.cols())?;
    let by_rows: Vec<Vec<[u32; COUNT_WORDS]>> =
        allocate::each("counts of tiles", grid.down, &|down| counts_of(p, down, grid.across))?;
    let of_tile = |tile| {
        let (down, across) = grid.place(tile);
        by_rows[down][across]
    };
    let counts: Vec<[u32; COUNT_WORDS]> =
        allocate::collected("counts of tiles", (0..grid.tiles()).map(of_tile))?;
    drop(by_rows);
    let starts = prefix_sum("slots", counts.iter().map(|c| units_of(c)))?;
    let chunks = starts[grid.tiles()] as usize * UNIT;
    let slots = check::product("slots", &[chunks, CHUNK])?;
    let mut places: Vec<u32> = check::zeroed("words", chunks)?;
    let mut values: Vec<T> = check::zeroed("values", slots)?;
    let chunks_of = |tile: usize| (starts[tile + 1] - starts[tile]) as usize * UNIT;
    let parts = cut_panels(&mut places, grid.tiles(), chunks_of)?.into_iter().zip(cut_panels(
        &mut values,
        grid.tiles(),
        |t| chunks_of(t) * CHUNK,
    )?);
    let mut lines = check::reserved("slices", grid.down)?;
    for _ in 0..grid.down {
        lines.push(check::reserved("slices", grid.across)?);
    }
    // The tiles of a row of tiles ascend in any tile order.
    for (tile, part) in parts.enumerate() {
        lines[grid.place(tile).0].push(part);
    }
    parallel::each_of(lines, &|down, mut line: Vec<(&mut [u32], &mut [T])>| {
        let mut banks: Vec<Banks> =
            (0..grid.across).map(|across| Banks::new(&counts[grid.tile(down, across)])).collect();
        for row in down * TILE_ROWS..((down + 1) * TILE_ROWS).min(p.rows()) {
            for e in p.row(row) {
                let col = p.columns()[e] as usize;
                let (bank, place) = bank_of(row % TILE_ROWS, col % TILE_COLS);
                let (chunk, slot) = banks[col / TILE_COLS].next(bank);
                let (places, values) = &mut line[col / TILE_COLS];
                // The following slots of the chunk repeat this position until they get their own.
                let below = (1u32 << (8 * slot)) - 1;
                let spread = u32::from(place) * (0x0101_0101 & !below);
                places[chunk] = places[chunk] & below | spread;
                values[chunk * CHUNK + slot] = csr.values()[e];
            }
        }
    });
    let mut words = check::reserved("words", counts.len() * COUNT_WORDS + places.len())?;
    words.extend(counts.as_flattened());
    words.append(&mut places);
    // SAFETY: entries are in bounds and distinct, and each has its own slot. Counts and starts were counted from the
    // entries.
    let pattern = unsafe { BytemapPattern::new_unchecked(p.rows(), p.cols(), words, starts) };
    Sparse::new(pattern, values)
}

/// Converts a bytemap to CSR. Stored zeros remain entries.
///
/// # Errors
/// Returns an error if allocation fails.
pub fn bytemap_to_csr<T: Element>(bytemap: &Bytemap<T>) -> Result<Csr<T>> {
    cost::to_csr(bytemap.as_sparse())?;
    let p = bytemap.pattern();
    let spread = |tile: usize, slot_at: &mut [u32]| {
        p.for_each_entry(tile, |row, col, slot| slot_at[row * TILE_COLS + col] = slot as u32);
    };
    let (shape, counts, values) = ([p.rows(), p.cols()], p.row_counts()?, bytemap.values());
    // SAFETY: positions are those of entries, which are in bounds and were counted.
    unsafe { tiles_to_csr::<T, TILE_ROWS, TILE_COLS>(&shape, p.grid(), counts, values, &spread) }
}
