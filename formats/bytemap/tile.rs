//! Geometry of a bytemap tile of 64 x 128: the element of each position of each bank.

use crate::CsrPattern;
use crate::bitmap::Grid;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 64;
/// Columns of a tile.
pub(crate) const TILE_COLS: usize = 128;
/// Number of banks, of four bytes each.
pub(crate) const BANKS: usize = 32;
/// Positions of a bank per tile.
pub(crate) const PLACES: usize = 256;
/// Slots per chunk.
pub(crate) const CHUNK: usize = 4;
/// The number of chunks of a tile is a multiple of this.
pub(crate) const UNIT: usize = 4;
/// Words with the counts of a tile.
pub(crate) const COUNT_WORDS: usize = BANKS / 4;

/// Tile grid of a matrix.
pub(crate) fn grid(rows: usize, cols: usize) -> Grid {
    Grid { down: rows.div_ceil(TILE_ROWS), across: cols.div_ceil(TILE_COLS) }
}

/// Bank and position of the element at a row and column of a tile.
pub(crate) fn bank_of(row: usize, col: usize) -> (usize, u8) {
    let chunk = (col % 64 / 8) ^ (row % 8);
    let line = col / 64 * TILE_ROWS + row;
    (chunk * 4 + col % 8 / 2, (line * 2 + col % 2) as u8)
}

/// Row and column in the tile of a position of a bank: the inverse of [`bank_of`].
pub(crate) fn place_of(bank: usize, place: u8) -> (usize, usize) {
    let (line, half) = (place as usize / 2, place as usize % 2);
    let row = line % TILE_ROWS;
    let chunk = (bank / 4) ^ (row % 8);
    (row, line / TILE_ROWS * 64 + chunk * 8 + bank % 4 * 2 + half)
}

/// Number of chunks of a bank.
fn count(counts: &[u32], bank: usize) -> usize {
    (counts[bank / 4] >> (8 * (bank % 4)) & 0xff) as usize
}

/// Calls `visit(chunk, bank, is_last)` for each chunk of a tile in order. `is_last`: it is the last chunk of its bank.
pub(crate) fn for_each_chunk(counts: &[u32], mut visit: impl FnMut(usize, usize, bool)) {
    let counts: [usize; BANKS] = std::array::from_fn(|bank| count(counts, bank));
    let most = counts.iter().copied().max().unwrap_or(0);
    let mut chunk = 0;
    for turn in 0..most {
        for bank in (0..BANKS).filter(|&bank| counts[bank] > turn) {
            visit(chunk, bank, counts[bank] == turn + 1);
            chunk += 1;
        }
    }
}

/// Number of units of [`UNIT`] chunks of a tile with these counts.
pub(crate) fn units_of(counts: &[u32]) -> usize {
    let chunks: usize = (0..BANKS).map(|bank| count(counts, bank)).sum();
    chunks.div_ceil(UNIT)
}

/// Chunk counts of a row of tiles, tile by tile.
pub(crate) fn counts_of(csr: &CsrPattern, down: usize, across: usize) -> Vec<[u32; COUNT_WORDS]> {
    let mut entries = vec![[0u32; BANKS]; across];
    for row in down * TILE_ROWS..((down + 1) * TILE_ROWS).min(csr.rows()) {
        for &col in &csr.columns()[csr.row(row)] {
            let (bank, _) = bank_of(row % TILE_ROWS, col as usize % TILE_COLS);
            entries[col as usize / TILE_COLS][bank] += 1;
        }
    }
    let chunks = |entries: &[u32; BANKS]| {
        let mut words = [0; COUNT_WORDS];
        for (bank, n) in entries.iter().enumerate() {
            words[bank / 4] |= n.div_ceil(CHUNK as u32) << (8 * (bank % 4));
        }
        words
    };
    entries.iter().map(chunks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_place_of_a_tile_is_of_one_bank() {
        let mut seen = BTreeSet::new();
        for row in 0..TILE_ROWS {
            for col in 0..TILE_COLS {
                let (bank, place) = bank_of(row, col);
                assert_eq!(place_of(bank, place), (row, col));
                assert!(bank < BANKS && seen.insert((bank, place)));
            }
        }
    }

    #[test]
    fn chunks_come_by_turns() {
        let mut counts = [0; COUNT_WORDS];
        counts[0] = 0x01_00_02;
        counts[7] = 0x02 << 24;
        let mut all = Vec::new();
        for_each_chunk(&counts, |chunk, bank, last| all.push((chunk, bank, last)));
        let wanted = [(0, 0, false), (1, 2, true), (2, 31, false), (3, 0, true), (4, 31, true)];
        assert_eq!(all, wanted);
        assert_eq!(units_of(&counts), 2);
    }
}
