//! Bitmap tiles: one bit for each place of a matrix and the values of the bits that are set, in the order in which the
//! lanes of a warp hold half an `mma.m16n8k16` fragment of A. For unstructured matrices with 5 to 50 % of their
//! entries, whose index would otherwise weigh as much as the values. After the tensor-core-aware bitmap encoding of
//! SpInfer (EuroSys 2025), section 4.1.

mod tile;

use rayon::prelude::*;

pub(crate) use tile::*;

use crate::pattern::matrix;
use crate::{Format, FormatError, IndexArray, PAD, Pattern, Role, Sparse, allocate, check};

/// Where the entries of a bitmap matrix are: `C[AM[p],n] += AV[p] * B[AK[p],n]`, with the coordinates in bits.
///
/// The matrix is cut into tiles of 64 x 64. Four tile rows are a panel; the tiles of a panel follow each other column
/// by column (of tiles), the last panel may have fewer rows of tiles.
///
/// - Words: 136 u32 of every tile. Word `32 s + l` (`s` < 4, `l` < 32) holds the bits of lane `l` in rows
///   `16 s .. 16 s + 16`: bit `8 (i % 4) + 2 t + i / 4` (`t` < 4, `i` < 8) is row `16 s + l / 4 + 8 (i / 2 % 2)`,
///   column `16 t + 2 (l % 4) + i % 2 + 8 (i / 4)` of the tile. The 8 words behind hold 16 numbers of 16 bits, low half
///   first: the number of the tile's values in front of those of the right half (`i >= 4`) of square `(s, t)`, at
///   `4 s + t`. From there the left half is counted down, the right one up.
/// - Starts: u32 for every tile and one more: where its values start, in units of 8 slots.
/// - Values: of each tile in ascending `(s, t, i / 4, l, i % 4)`, padded to a multiple of 8 slots, which nothing reads.
///
/// That is 1 bit for each place, 0.0625 for the middles, and on average 0.0078 for the starts and, of 16-bit values,
/// 0.0137 of padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitmapPattern {
    shape: [usize; 2],
    nnz: usize,
    words: Vec<u32>,
    starts: Vec<u32>,
}

/// A bitmap matrix.
pub type Bitmap<T> = Sparse<BitmapPattern, T>;

impl BitmapPattern {
    /// Checks and takes the words, 136 for each tile, and the starts.
    ///
    /// # Errors
    /// If the extents or the slots do not fit u32, an array has another length, the starts do not begin at 0 or are not
    /// as far apart as the bits of a tile want, a middle is not the number of bits in front of it, or a bit past the
    /// last row or column is set.
    pub fn new(
        rows: usize,
        cols: usize,
        words: Vec<u32>,
        starts: Vec<u32>,
    ) -> Result<Self, FormatError> {
        let grid = checked_grid(rows, cols)?;
        check::length("words", words.len(), grid.tiles() * WORDS)?;
        check::length("starts", starts.len(), grid.tiles() + 1)?;
        if starts[0] != 0 {
            return Err(FormatError::InvalidIndex {
                array: "starts",
                position: 0,
                value: starts[0].into(),
                bound: 1,
            });
        }
        let bad = |(tile, words): (usize, &[u32])| {
            let (down, across) = grid.place(tile);
            let inside = ((rows - down * TILE).min(TILE), (cols - across * TILE).min(TILE));
            bad_tile(tile, words, &starts[tile..tile + 2], inside)
        };
        let tiles = words.par_chunks_exact(WORDS).enumerate().with_min_len(64);
        if let Some(error) = tiles.find_map_first(bad) {
            return Err(error);
        }
        check::product("slots", &[starts[grid.tiles()] as usize, ALIGN])?;
        // SAFETY: checked above.
        Ok(unsafe { Self::new_unchecked(rows, cols, words, starts) })
    }

    /// Takes the arrays unchecked.
    ///
    /// # Safety
    /// [`BitmapPattern::new`] would accept the arguments. Kernels and converters index without checks on the strength
    /// of it.
    pub unsafe fn new_unchecked(
        rows: usize,
        cols: usize,
        words: Vec<u32>,
        starts: Vec<u32>,
    ) -> Self {
        let count = |tile: &[u32]| -> usize {
            tile[..BITS].iter().map(|word| word.count_ones() as usize).sum()
        };
        BitmapPattern {
            shape: [rows, cols],
            nnz: words.par_chunks_exact(WORDS).map(count).sum(),
            words,
            starts,
        }
    }

    pub(crate) fn grid(&self) -> Grid {
        Grid::new(self.rows(), self.cols())
    }

    /// Bits of a tile.
    pub(crate) fn bits(&self, tile: usize) -> &[u32] {
        &self.words[tile * WORDS..][..BITS]
    }

    /// First slot of a tile.
    pub(crate) fn first_slot(&self, tile: usize) -> usize {
        self.starts[tile] as usize * ALIGN
    }

    /// Row and column of every slot, [`PAD`] in padding: the coordinates `AM[p]` and `AK[p]` of the indirect form.
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

    /// Entries of each row.
    ///
    /// # Errors
    /// [`FormatError::Limit`] for many rows of no columns, [`FormatError::Memory`] if there is no memory.
    pub fn row_counts(&self) -> Result<Vec<u32>, FormatError> {
        let grid = self.grid();
        allocate::extent("rows", self.rows() as u128, 4, allocate::bytes_of(&self.arrays()))?;
        let mut counts = check::zeroed("counts of rows", self.rows())?;
        let lines = <[u32]>::par_chunks_mut(&mut counts, TILE).enumerate();
        lines.for_each(|(down, counts)| {
            for across in 0..grid.across {
                let bits = self.bits(grid.tile(down, across));
                for (word, &bits) in bits.iter().enumerate() {
                    // The lower half of a word belongs to the upper of a lane's two rows.
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

/// The tiles of a matrix whose words can be numbered.
pub(crate) fn checked_grid(rows: usize, cols: usize) -> Result<Grid, FormatError> {
    check::matrix(rows, cols)?;
    let grid = Grid::new(rows, cols);
    check::product("words", &[grid.down, grid.across, WORDS])?;
    Ok(grid)
}

/// What is wrong with a tile, if anything.
fn bad_tile(
    tile: usize,
    words: &[u32],
    starts: &[u32],
    (rows, cols): (usize, usize),
) -> Option<FormatError> {
    let invalid = |array, position, value: u32, bound: u64| {
        Some(FormatError::InvalidIndex { array, position, value: value.into(), bound })
    };
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
            return invalid("words", tile * WORDS + BITS + i, *pair, u64::from(wanted) + 1);
        }
    }
    let wanted = u64::from(starts[0]) + units(offsets[32] as usize) as u64;
    if u64::from(starts[1]) != wanted {
        return invalid("starts", tile + 1, starts[1], wanted + 1);
    }
    None
}

matrix! { BitmapPattern {
    /// Bits and middles of the tiles, 136 words each.
    words,
    /// Where the values of each tile start, in units of 8 slots, and where the last one's end.
    starts,
} }

impl Pattern for BitmapPattern {
    fn format(&self) -> Format {
        Format::Bitmap
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn nnz(&self) -> usize {
        self.nnz
    }

    fn value_shape(&self) -> Vec<usize> {
        vec![self.first_slot(self.starts.len() - 1)]
    }

    fn arrays(&self) -> Vec<IndexArray<'_>> {
        let tiles = self.grid().tiles();
        vec![
            IndexArray::new(Role::Bits, [tiles, WORDS], &self.words),
            IndexArray::new(Role::Starts, [tiles + 1], &self.starts),
        ]
    }
}
