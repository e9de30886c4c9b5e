//! Geometry of a bitmap tile of 64 x 64: the element of each bit, and the order of the tiles.

/// Rows and columns of a tile.
pub(crate) const TILE: usize = 64;
/// Rows of tiles in a panel. Tiles of a panel with the same columns are adjacent in memory.
pub(crate) const PANEL: usize = 4;
/// Words with bits per tile: 4 slabs of 16 rows, one word per lane.
pub(crate) const BITS: usize = 128;
/// Words per tile: the bits, then 16 middles of 16 bits.
pub(crate) const WORDS: usize = BITS + 8;
/// The values of a tile are padded to a multiple of this number of slots.
pub(crate) const ALIGN: usize = 8;

/// Tile grid of a matrix, and the order of the tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Rows of tiles.
    pub down: usize,
    /// Columns of tiles.
    pub across: usize,
}

impl Grid {
    pub fn new(rows: usize, cols: usize) -> Self {
        Grid { down: rows.div_ceil(TILE), across: cols.div_ceil(TILE) }
    }

    /// Rows of tiles in a panel.
    pub fn height(self, panel: usize) -> usize {
        (self.down - panel * PANEL).min(PANEL)
    }

    /// Index of the tile at a row and column of tiles.
    pub fn tile(self, down: usize, across: usize) -> usize {
        let panel = down / PANEL;
        panel * PANEL * self.across + across * self.height(panel) + down % PANEL
    }

    /// Row and column of tiles at which a tile is.
    pub fn place(self, tile: usize) -> (usize, usize) {
        let panel = tile / (PANEL * self.across);
        let within = tile - panel * PANEL * self.across;
        let height = self.height(panel);
        (panel * PANEL + within % height, within / height)
    }

    pub fn tiles(self) -> usize {
        self.down * self.across
    }
}

/// Word and bit of the element at a row and column of a tile.
pub(crate) fn bit_of(row: usize, col: usize) -> (usize, usize) {
    let (r, c) = (row % 16, col % 16);
    let lane = r % 8 * 4 + c % 8 / 2;
    let i = c / 8 * 4 + r / 8 * 2 + c % 2;
    (row / 16 * 32 + lane, 8 * (i % 4) + 2 * (col / 16) + i / 4)
}

/// Row and column in the tile of a bit of a word: the inverse of [`bit_of`].
pub(crate) fn place_of(word: usize, bit: usize) -> (usize, usize) {
    let (slab, lane, square, i) = (word / 32, word % 32, bit % 8 / 2, bit % 2 * 4 + bit / 8);
    let row = 16 * slab + lane / 4 + 8 * (i / 2 % 2);
    let col = 16 * square + 2 * (lane % 4) + i % 2 + 8 * (i / 4);
    (row, col)
}

/// Bits of a lane in one half. A half is 16 x 8; halves `2 t` and `2 t + 1` are square `t`.
pub(crate) fn of_half(word: u32, half: usize) -> u32 {
    word >> half & 0x0101_0101
}

/// Number of values of a tile before each half, and their total, from the bits of the tile.
pub(crate) fn half_offsets(bits: &[u32]) -> [u32; 33] {
    let mut offsets = [0; 33];
    for at in 0..32 {
        let (slab, half) = (at / 8, at % 8);
        let count = |&word: &u32| of_half(word, half).count_ones();
        let here: u32 = bits[32 * slab..32 * slab + 32].iter().map(count).sum();
        offsets[at + 1] = offsets[at] + here;
    }
    offsets
}

/// Words after the bits of a tile: for each square, the number of values before its second half. Two squares share a
/// word.
pub(crate) fn middles(offsets: &[u32; 33]) -> [u32; WORDS - BITS] {
    std::array::from_fn(|i| offsets[4 * i + 1] | offsets[4 * i + 3] << 16)
}

/// Calls `visit(row, column, rank)` for each bit that is set, in the order of the values.
pub(crate) fn for_each_bit(bits: &[u32], mut visit: impl FnMut(usize, usize, usize)) {
    let mut rank = 0;
    for slab in 0..4 {
        for half in 0..8 {
            for lane in 0..32 {
                let here = of_half(bits[32 * slab + lane], half);
                if here == 0 {
                    continue;
                }
                for i in (0..4).filter(|i| here >> (8 * i) & 1 != 0) {
                    let row = 16 * slab + lane / 4 + 8 * (i / 2);
                    let col = 8 * half + 2 * (lane % 4) + i % 2;
                    visit(row, col, rank);
                    rank += 1;
                }
            }
        }
    }
}

/// Number of bits that are set.
pub(crate) fn ones(bits: &[u32]) -> usize {
    bits.iter().map(|word| word.count_ones() as usize).sum()
}

/// Number of units of [`ALIGN`] slots of a tile with `entries` entries.
pub(crate) fn units(entries: usize) -> usize {
    entries.div_ceil(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_place_of_a_tile_has_one_bit() {
        let mut seen = BTreeSet::new();
        for row in 0..TILE {
            for col in 0..TILE {
                let (word, bit) = bit_of(row, col);
                assert_eq!(place_of(word, bit), (row, col));
                assert!(word < BITS && bit < 32 && seen.insert((word, bit)));
            }
        }
    }

    #[test]
    fn tiles_are_numbered_by_panels() {
        let grid = Grid::new(64 * 6, 64 * 3);
        let mut all = BTreeSet::new();
        for down in 0..6 {
            for across in 0..3 {
                let tile = grid.tile(down, across);
                assert_eq!(grid.place(tile), (down, across));
                assert!(all.insert(tile));
            }
        }
        assert_eq!(all.last(), Some(&17));
        assert_eq!([grid.tile(0, 1), grid.tile(4, 0), grid.tile(4, 1)], [4, 12, 14]);
    }

    #[test]
    fn a_full_tile_lists_its_values_in_order() {
        let offsets = half_offsets(&[u32::MAX; BITS]);
        assert_eq!(offsets[32], 4096);
        assert_eq!(middles(&offsets)[7], 3712 | 3968 << 16);
        let mut next = 0;
        for_each_bit(&[u32::MAX; BITS], |row, col, rank| {
            assert_eq!((rank, row / 16 * 8 + col / 8), (next, rank / 128));
            next += 1;
        });
        assert_eq!(next, 4096);
    }
}
