//! Bitmap: one bit per element of a matrix, by tiles, and the values of the bits that are set. The values are in the
//! order in which the lanes of a warp hold half an `mma.m16n8k16` fragment of A. The format is for unstructured
//! matrices with a density of 5 to 50 %, whose indices would otherwise need as much memory as the values. It follows
//! the tensor-core-aware bitmap encoding of SpInfer (EuroSys 2025), section 4.1.

mod tile;

use rayon::prelude::*;

pub(crate) use tile::*;

use crate::error::*;
use crate::pattern::matrix;
use crate::{Format, IndexArray, PAD, Pattern, Role, allocate, check};

matrix! {
    /// Pattern of a bitmap matrix: `C[AM[p],n] += AV[p] * B[AK[p],n]`, with the coordinates encoded in bits.
    ///
    /// The matrix is divided into tiles of 64 x 64. Four rows of tiles are a panel. The tiles of a panel are stored column
    /// by column (of tiles). The last panel may have fewer rows of tiles.
    ///
    /// - Words: 136 u32 per tile. Word `32 s + l` (`s` < 4, `l` < 32) contains the bits of lane `l` in rows
    ///   `16 s .. 16 s + 16`. Bit `8 (i % 4) + 2 t + i / 4` (`t` < 4, `i` < 8) is row `16 s + l / 4 + 8 (i / 2 % 2)`,
    ///   column `16 t + 2 (l % 4) + i % 2 + 8 (i / 4)` of the tile. The next 8 words contain 16 numbers of 16 bits, the
    ///   middles, low half first. Number `4 s + t` counts the values of the tile before the right half (`i >= 4`) of square
    ///   `(s, t)`. From there, kernels count backward for the left half and forward for the right half.
    /// - Starts: one u32 per tile and one more: the start of the values of the tile, in units of 8 slots.
    /// - Values: those of each tile in ascending order of `(s, t, i / 4, l, i % 4)`, padded to a multiple of 8 slots.
    ///   Padding is never read.
    ///
    /// An element therefore needs 1 bit, 0.0625 bits for the middles, on average 0.0078 bits for the starts, and for 16-bit
    /// values 0.0137 bits of padding.
    BitmapPattern,
    /// A bitmap matrix.
    Bitmap() {
        /// Bits and middles of the tiles, 136 words each.
        words: u32,
        /// Start of the values of each tile and the end of the last tile, in units of 8 slots.
        starts: u32,
    }
    p is Format::Bitmap;
    stores nnz: p.words.par_chunks_exact(WORDS).map(|tile| ones(&tile[..BITS])).sum();
    nnz p.nnz;
    values [p.first_slot(p.starts.len() - 1)];
    arrays [
        IndexArray::new(Role::Bits, [p.grid().tiles(), WORDS], &p.words),
        IndexArray::new(Role::Starts, [p.starts.len()], &p.starts),
    ]
}

impl BitmapPattern {
    /// Validates and stores the words, 136 per tile, and the starts.
    ///
    /// # Errors
    /// Returns an error if the extents or the number of slots exceed u32, an array has the wrong length, the starts do
    /// not begin at 0, the distance of two starts does not match the bits of the tile, a middle is not the number of
    /// bits before it, or a bit past the last row or column is set.
    pub fn new(rows: usize, cols: usize, words: Vec<u32>, starts: Vec<u32>) -> Result<Self> {
        let grid = checked_grid(rows, cols)?;
        check::length("words", words.len(), grid.tiles() * WORDS)?;
        check::length("starts", starts.len(), grid.tiles() + 1)?;
        if starts[0] != 0 {
            return Err(check::invalid("starts", 0, starts[0], 1));
        }
        let bad = |(tile, words): (usize, &[u32])| {
            let (down, across) = grid.place(tile);
            let inside = ((rows - down * TILE).min(TILE), (cols - across * TILE).min(TILE));
            bad_tile(tile, words, &starts[tile..tile + 2], inside)
        };
        let tiles = words.par_chunks_exact(WORDS).enumerate().with_min_len(64);
        check::first(tiles.find_map_first(bad))?;
        check::product("slots", &[starts[grid.tiles()] as usize, ALIGN])?;
        // SAFETY: checked above.
        Ok(unsafe { Self::new_unchecked(rows, cols, words, starts) })
    }

    pub(crate) fn grid(&self) -> Grid {
        Grid::new(self.rows(), self.cols())
    }

    /// Words with the bits of a tile.
    pub(crate) fn bits(&self, tile: usize) -> &[u32] {
        &self.words[tile * WORDS..][..BITS]
    }

    /// First slot of a tile.
    pub(crate) fn first_slot(&self, tile: usize) -> usize {
        self.starts[tile] as usize * ALIGN
    }

    /// Row and column of every slot: the coordinates `AM[p]` and `AK[p]` of the indirect form. Both are [`PAD`] for
    /// padding.
    pub fn coordinates(&self) -> [Vec<u32>; 2] {
        let mut coords = [vec![PAD; self.slots()], vec![PAD; self.slots()]];
        let grid = self.grid();
        for tile in 0..grid.tiles() {
            let (down, across) = grid.place(tile);
            let first = self.first_slot(tile);
            for_each_bit(self.bits(tile), |row, col, rank| {
                coords[0][first + rank] = (down * TILE + row) as u32;
                coords[1][first + rank] = (across * TILE + col) as u32;
            });
        }
        coords
    }

    /// Number of entries of each row.
    ///
    /// # Errors
    /// Returns [`FormatError::Limit`] for many rows without columns, and [`FormatError::Memory`] if allocation fails.
    pub fn row_counts(&self) -> Result<Vec<u32>> {
        let grid = self.grid();
        allocate::extent("rows", self.rows() as u128, 4, allocate::bytes_of(&self.arrays()))?;
        let mut counts = check::zeroed("counts of rows", self.rows())?;
        let lines = <[u32]>::par_chunks_mut(&mut counts, TILE).enumerate();
        lines.for_each(|(down, counts)| {
            for across in 0..grid.across {
                let bits = self.bits(grid.tile(down, across));
                for (word, &bits) in bits.iter().enumerate() {
                    // A lane holds two rows. The lower half of its word belongs to the upper row.
                    let row = word / 32 * 16 + word % 32 / 4;
                    for (row, mask) in [(row, 0xffff), (row + 8, 0xffff_0000)] {
                        if let Some(count) = counts.get_mut(row) {
                            *count += (bits & mask).count_ones();
                        }
                    }
                }
            }
        });
        Ok(counts)
    }
}

/// Tile grid of a matrix. Returns an error if the number of words exceeds the index type.
pub(crate) fn checked_grid(rows: usize, cols: usize) -> Result<Grid> {
    check::matrix(rows, cols)?;
    let grid = Grid::new(rows, cols);
    check::product("words", &[grid.down, grid.across, WORDS])?;
    Ok(grid)
}

/// Returns the error of a tile, if the tile is invalid.
fn bad_tile(
    tile: usize,
    words: &[u32],
    starts: &[u32],
    (rows, cols): (usize, usize),
) -> Option<FormatError> {
    let invalid =
        |array, position, value, bound| Some(check::invalid(array, position, value, bound));
    let bits = &words[..BITS];
    if rows < TILE || cols < TILE {
        let outside = |bit: &(usize, usize)| {
            let (row, col) = place_of(bit.0, bit.1);
            (row >= rows || col >= cols) && bits[bit.0] >> bit.1 & 1 != 0
        };
        let mut all = (0..BITS).flat_map(|word| (0..32).map(move |bit| (word, bit)));
        if let Some((word, _)) = all.find(outside) {
            return invalid("words", tile * WORDS + word, bits[word], 0);
        }
    }
    let offsets = half_offsets(bits);
    let pairs = words[BITS..].iter().zip(middles(&offsets));
    for (i, (pair, wanted)) in pairs.enumerate() {
        if *pair != wanted {
            return invalid("words", tile * WORDS + BITS + i, *pair, wanted as usize + 1);
        }
    }
    let wanted = starts[0] as usize + units(offsets[32] as usize);
    (starts[1] as usize != wanted)
        .then(|| check::invalid("starts", tile + 1, starts[1], wanted + 1))
}
