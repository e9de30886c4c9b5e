//! Bytemap: every value with one byte for its position, ordered by the banks of shared memory in which the tile is
//! expanded. The format is for unstructured matrices with a density of up to 1/8, where one byte per entry needs no
//! more memory than one bit per element.

mod tile;

use rayon::prelude::*;

pub(crate) use tile::*;

use crate::bitmap::Grid;
use crate::error::*;
use crate::pattern::matrix;
use crate::{Format, IndexArray, PAD, Pattern, Role, allocate, check};

matrix! {
    /// Pattern of a bytemap matrix: `C[AM[p],n] += AV[p] * B[AK[p],n]`, with the coordinates encoded in bytes.
    ///
    /// The matrix is divided into tiles of 64 x 128, in the panel order of a [bitmap](crate::BitmapPattern). In shared
    /// memory, a tile is two halves of 64 x 64, one after the other, with rows of 128 bytes (of 16-bit elements). The rows
    /// are swizzled for Tensor Cores: chunk `c` of 16 bytes of row `r` is stored at chunk `c ^ r % 8`. Each of the 32
    /// *banks* of 4 bytes contains 256 positions of this memory: position `2 q + h` of bank `b` is row `q % 64`, column
    /// `64 (q / 64) + 8 ((b / 4) ^ (q % 8)) + 2 (b % 4) + h`.
    ///
    /// The entries of a bank are stored in chunks of four; the last chunk is padded. Chunk 0 of every bank that has one
    /// comes first, by bank, then chunk 1, and so on. The chunks of a tile are padded to a multiple of four chunks.
    ///
    /// - Words: 8 u32 per tile, with one byte per bank: its number of chunks. After the words of all tiles follows one u32
    ///   per chunk: the positions of its four slots, lowest byte first. In the last chunk of a bank, a slot without entry
    ///   repeats the previous position. All other positions are distinct.
    /// - Starts: one u32 per tile and one more: the start of its chunks, in units of 4 chunks.
    /// - Values: four per chunk. Values in slots without entry are ignored.
    ///
    /// An entry therefore needs 8 bits. An element of the matrix needs 0.031 bits for the counts, 0.004 bits for the starts
    /// and about 0.16 bits of padding (of 16-bit values and their positions).
    BytemapPattern,
    /// A bytemap matrix.
    Bytemap() {
        /// Chunk counts of the banks of all tiles, 8 words each, followed by the positions of all chunks.
        words: u32,
        /// Start of the chunks of each tile and the end of the last tile, in units of 4 chunks.
        starts: u32,
    }
    p is Format::Bytemap;
    stores nnz: (0..p.grid().tiles())
        .into_par_iter()
        .map(|tile| {
            let mut entries = 0;
            p.for_each_entry(tile, |_, _, _| entries += 1);
            entries
        })
        .sum();
    nnz p.nnz;
    values [p.starts[p.starts.len() - 1] as usize * UNIT * CHUNK];
    arrays [
        IndexArray::new(Role::Bits, [p.words.len()], &p.words),
        IndexArray::new(Role::Starts, [p.starts.len()], &p.starts),
    ]
}

impl BytemapPattern {
    /// Validates and stores the words and the starts.
    ///
    /// # Errors
    /// Returns an error if the extents or the number of slots exceed u32, an array has the wrong length, the starts do
    /// not begin at 0, the distance of two starts does not match the counts of the tile, a position is past the last
    /// row or column or occurs twice, or padding is not as described above.
    pub fn new(rows: usize, cols: usize, words: Vec<u32>, starts: Vec<u32>) -> Result<Self> {
        let grid = checked_grid(rows, cols)?;
        check::length("starts", starts.len(), grid.tiles() + 1)?;
        let counts = grid.tiles() * COUNT_WORDS;
        let end = starts[grid.tiles()] as usize * UNIT;
        check::product("slots", &[end, CHUNK])?;
        check::length("words", words.len(), counts + end)?;
        if starts[0] != 0 {
            return Err(check::invalid("starts", 0, starts[0], 1));
        }
        for tile in 0..grid.tiles() {
            let wanted = starts[tile] as usize + units_of(&words[tile * COUNT_WORDS..]);
            if starts[tile + 1] as usize != wanted {
                return Err(check::invalid("starts", tile + 1, starts[tile + 1], wanted + 1));
            }
        }
        let bad = |tile: usize| {
            let (down, across) = grid.place(tile);
            let inside = (
                (rows - down * TILE_ROWS).min(TILE_ROWS),
                (cols - across * TILE_COLS).min(TILE_COLS),
            );
            let first = counts + starts[tile] as usize * UNIT;
            bad_tile(&words, tile * COUNT_WORDS, first, inside)
        };
        let tiles = (0..grid.tiles()).into_par_iter().with_min_len(64);
        check::first(tiles.find_map_first(bad))?;
        // SAFETY: checked above.
        Ok(unsafe { Self::new_unchecked(rows, cols, words, starts) })
    }

    pub(crate) fn grid(&self) -> Grid {
        grid(self.rows(), self.cols())
    }

    /// Calls `visit(row, column, slot)` for each entry of a tile. Row and column are relative to the tile; the slot is
    /// an index into all values.
    pub(crate) fn for_each_entry(&self, tile: usize, mut visit: impl FnMut(usize, usize, usize)) {
        let counts = &self.words[tile * COUNT_WORDS..][..COUNT_WORDS];
        let first = self.starts[tile] as usize * UNIT;
        let places = &self.words[self.grid().tiles() * COUNT_WORDS + first..];
        for_each_chunk(counts, |chunk, bank, _| {
            let bytes = places[chunk].to_le_bytes();
            for (i, &place) in bytes.iter().enumerate() {
                if i == 0 || place != bytes[i - 1] {
                    let (row, col) = place_of(bank, place);
                    visit(row, col, (first + chunk) * CHUNK + i);
                }
            }
        });
    }

    /// Row and column of every slot: the coordinates `AM[p]` and `AK[p]` of the indirect form. Both are [`PAD`] for
    /// padding.
    pub fn coordinates(&self) -> [Vec<u32>; 2] {
        let mut coords = [vec![PAD; self.slots()], vec![PAD; self.slots()]];
        let grid = self.grid();
        for tile in 0..grid.tiles() {
            let (down, across) = grid.place(tile);
            self.for_each_entry(tile, |row, col, slot| {
                coords[0][slot] = (down * TILE_ROWS + row) as u32;
                coords[1][slot] = (across * TILE_COLS + col) as u32;
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
        let lines = <[u32]>::par_chunks_mut(&mut counts, TILE_ROWS).enumerate();
        lines.for_each(|(down, counts)| {
            for across in 0..grid.across {
                self.for_each_entry(grid.tile(down, across), |row, _, _| counts[row] += 1);
            }
        });
        Ok(counts)
    }
}

/// Tile grid of a matrix. Returns an error if the number of count words exceeds the index type.
pub(crate) fn checked_grid(rows: usize, cols: usize) -> Result<Grid> {
    check::matrix(rows, cols)?;
    let grid = grid(rows, cols);
    check::product("words", &[grid.down, grid.across, COUNT_WORDS])?;
    Ok(grid)
}

/// Returns the error of a tile, if the tile is invalid. Its counts are at `words[counts..]`, its positions at
/// `words[first..]`.
fn bad_tile(
    words: &[u32],
    counts: usize,
    first: usize,
    (rows, cols): (usize, usize),
) -> Option<FormatError> {
    let mut seen = [0u32; TILE_ROWS * TILE_COLS / 32];
    let mut error = None;
    for_each_chunk(&words[counts..][..COUNT_WORDS], |chunk, bank, last| {
        let position = first + chunk;
        let bytes = words[position].to_le_bytes();
        let mut padding = false;
        for (i, &place) in bytes.iter().enumerate() {
            let (row, col) = place_of(bank, place);
            let repeated = last && i > 0 && place == bytes[i - 1];
            let bit = bank * PLACES + place as usize;
            let again = seen[bit / 32] >> (bit % 32) & 1 != 0;
            let bad = row >= rows || col >= cols || !repeated && (again || padding);
            if bad && error.is_none() {
                let word = words[position];
                error = Some(check::shape(
                    "a chunk of places",
                    format!(
                        "words[{position}] = {word:#010x}, row {row}, column {col} in slot {i}"
                    ),
                    format!("places of a tile of {rows} x {cols}, each once, the last repeated"),
                ));
            }
            padding |= repeated;
            seen[bit / 32] |= 1 << (bit % 32);
        }
    });
    error
}
