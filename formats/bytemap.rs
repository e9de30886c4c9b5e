//! Byte maps: every value with the byte of its place, by the banks of the shared memory that a tile is spread out in.
//! For unstructured matrices with up to an eighth of their entries, where a byte for each weighs no more than a bit for
//! each place.

mod tile;

use rayon::prelude::*;

pub(crate) use tile::*;

use crate::bitmap::Grid;
use crate::pattern::matrix;
use crate::{Format, FormatError, IndexArray, PAD, Pattern, Role, Sparse, allocate, check};

/// Where the entries of a byte map are: `C[AM[p],n] += AV[p] * B[AK[p],n]`, with the coordinates in bytes.
///
/// The matrix is cut into tiles of 64 x 128, numbered by panels as those of a [bitmap](crate::BitmapPattern). A tile is
/// laid out as two halves of 64 x 64, one after the other, with rows of 128 bytes (of 16-bit elements) whose chunks of
/// 16 bytes are exchanged, chunk `c` of row `r` with chunk `c ^ r % 8`: what Tensor Cores read. Of that memory, 32
/// *banks* of 4 bytes own 256 places each: place `2 q + h` of bank `b` is row `q % 64`, column
/// `64 (q / 64) + 8 ((b / 4) ^ (q % 8)) + 2 (b % 4) + h`.
///
/// Each bank's entries lie in chunks of four, the last one filled up. Chunk 0 of every bank that has one comes first,
/// by banks, then chunk 1, and so on; a tile's chunks are padded to a multiple of four of them.
///
/// - Words: 8 u32 of every tile: a byte for each bank says how many chunks it has. Behind those of all tiles a u32 for
///   each chunk: the places of its four slots, lowest byte first. In a bank's last chunk a slot without an entry
///   repeats the place in front; no other place comes twice.
/// - Starts: u32 for every tile and one more: where its chunks start, in units of 4 chunks.
/// - Values: four for each chunk. What stands in slots without an entry does not matter.
///
/// That is 8 bits for each entry and, for each place, 0.031 for the counts, 0.004 for the starts and about 0.16 of
/// padding (of 16-bit values, with their places).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BytemapPattern {
    shape: [usize; 2],
    nnz: usize,
    words: Vec<u32>,
    starts: Vec<u32>,
}

/// A matrix with its places as bytes.
pub type Bytemap<T> = Sparse<BytemapPattern, T>;

impl BytemapPattern {
    /// Checks and takes the words and the starts.
    ///
    /// # Errors
    /// If the extents or the slots do not fit u32, an array has another length, the starts do not begin at 0 or are not
    /// as far apart as the counts of a tile want, a place past the last row or column or the same place twice is named,
    /// or padding is not as described.
    pub fn new(
        rows: usize,
        cols: usize,
        words: Vec<u32>,
        starts: Vec<u32>,
    ) -> Result<Self, FormatError> {
        let grid = checked_grid(rows, cols)?;
        check::length("starts", starts.len(), grid.tiles() + 1)?;
        let counts = grid.tiles() * COUNT_WORDS;
        let end = starts[grid.tiles()] as usize * UNIT;
        check::product("slots", &[end, CHUNK])?;
        check::length("words", words.len(), counts + end)?;
        let invalid = |position, value: u32, bound: u64| FormatError::InvalidIndex {
            array: "starts",
            position,
            value: value.into(),
            bound,
        };
        if starts[0] != 0 {
            return Err(invalid(0, starts[0], 1));
        }
        for tile in 0..grid.tiles() {
            let wanted = u64::from(starts[tile]) + units_of(&words[tile * COUNT_WORDS..]) as u64;
            if u64::from(starts[tile + 1]) != wanted {
                return Err(invalid(tile + 1, starts[tile + 1], wanted + 1));
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
        if let Some(error) = tiles.find_map_first(bad) {
            return Err(error);
        }
        // SAFETY: checked above.
        Ok(unsafe { Self::new_unchecked(rows, cols, words, starts) })
    }

    /// Takes the arrays unchecked.
    ///
    /// # Safety
    /// [`BytemapPattern::new`] would accept the arguments. Kernels and converters index without checks on the strength
    /// of it.
    pub unsafe fn new_unchecked(
        rows: usize,
        cols: usize,
        words: Vec<u32>,
        starts: Vec<u32>,
    ) -> Self {
        let mut pattern = BytemapPattern { shape: [rows, cols], nnz: 0, words, starts };
        let tiles = (0..pattern.grid().tiles()).into_par_iter();
        pattern.nnz = tiles
            .map(|tile| {
                let mut entries = 0;
                pattern.for_each_entry(tile, |_, _, _| entries += 1);
                entries
            })
            .sum();
        pattern
    }

    pub(crate) fn grid(&self) -> Grid {
        grid(self.rows(), self.cols())
    }

    /// Calls `visit(row, column, slot)` for each entry of a tile, row and column in the tile, the slot of all.
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

    /// Row and column of every slot, [`PAD`] in padding: the coordinates `AM[p]` and `AK[p]` of the indirect form.
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

    /// Entries of each row.
    ///
    /// # Errors
    /// [`FormatError::Limit`] for many rows of no columns, [`FormatError::Memory`] if there is no memory.
    pub fn row_counts(&self) -> Result<Vec<u32>, FormatError> {
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

/// The tiles of a matrix whose counts can be numbered.
pub(crate) fn checked_grid(rows: usize, cols: usize) -> Result<Grid, FormatError> {
    check::matrix(rows, cols)?;
    let grid = grid(rows, cols);
    check::product("words", &[grid.down, grid.across, COUNT_WORDS])?;
    Ok(grid)
}

/// What is wrong with a tile, if anything. Its counts are at `counts`, its places at `first`.
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
                error = Some(FormatError::Shape {
                    what: "a chunk of places",
                    found: format!(
                        "words[{position}] = {word:#010x}, row {row}, column {col} in slot {i}"
                    ),
                    expected: format!(
                        "places of a tile of {rows} x {cols}, each once, the last repeated"
                    ),
                });
            }
            padding |= repeated;
            seen[bit / 32] |= 1 << (bit % 32);
        }
    });
    error
}

matrix! { BytemapPattern {
    /// Counts of the banks of all tiles, 8 words each, and the places of all chunks.
    words,
    /// Where the chunks of each tile start, in units of 4 chunks, and where the last one's end.
    starts,
} }

impl Pattern for BytemapPattern {
    fn format(&self) -> Format {
        Format::Bytemap
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn nnz(&self) -> usize {
        self.nnz
    }

    fn value_shape(&self) -> Vec<usize> {
        vec![self.starts[self.starts.len() - 1] as usize * UNIT * CHUNK]
    }

    fn arrays(&self) -> Vec<IndexArray<'_>> {
        vec![
            IndexArray::new(Role::Bits, [self.words.len()], &self.words),
            IndexArray::new(Role::Starts, [self.starts.len()], &self.starts),
        ]
    }
}
