//! Row statistics, slot counts of each format, and the choice of the group size by exact count.

mod classes;

use rayon::prelude::*;

use crate::convert::{block_row_counts, check_groups, sliced_chunks};
use crate::error::*;
use crate::group_coo::check_axis;
use crate::sliced_ell::{CHUNK_SLOTS, SLICE};
use crate::{CooPattern, CsrPattern, Format, Pattern, allocate, check, nm};
use crate::{bitmap, bytemap};

pub(crate) use classes::class_of;

/// Distribution of entries over rows (or over the coordinates of an axis, or of blocks over block rows).
#[derive(Clone, Debug, PartialEq)]
pub struct RowStats {
    /// Number of rows, including empty ones.
    pub rows: usize,
    /// Number of entries.
    pub nnz: usize,
    /// Number of rows with an entry.
    pub non_empty: usize,
    /// Entries of the shortest row.
    pub min: usize,
    /// Entries of the longest row.
    pub max: usize,
    /// Mean number of entries per row, including empty rows.
    pub mean: f64,
    /// Population standard deviation of the entries per row.
    pub std: f64,
    /// Pairs (entries of a row, number of such rows), ascending. Lengths without rows are omitted.
    pub histogram: Vec<(usize, usize)>,
}

impl RowStats {
    /// Computes statistics from the number of entries of every row.
    pub fn from_counts(counts: impl IntoIterator<Item = usize>) -> Self {
        Self::from_counts_and_empty(counts, 0)
    }

    /// Computes statistics from the number of entries of the given rows, and `empty` additional rows without entries.
    fn from_counts_and_empty(counts: impl IntoIterator<Item = usize>, empty: usize) -> Self {
        // Most rows are short and are counted in a table. Long rows are few, because each holds many entries.
        let mut short = [0_usize; 1024];
        short[0] = empty;
        let mut long = Vec::new();
        for count in counts {
            match short.get_mut(count) {
                Some(rows) => *rows += 1,
                None => long.push(count),
            }
        }
        long.sort_unstable();
        let short = short.into_iter().enumerate().filter(|(_, rows)| *rows > 0);
        let long = long.chunk_by(|a, b| a == b);
        let long = long.map(|same| (same[0], same.len()));
        Self::from_histogram(short.chain(long).collect())
    }

    /// Computes statistics from ascending pairs (entries of a row, number of such rows).
    fn from_histogram(histogram: Vec<(usize, usize)>) -> Self {
        let rows = histogram.iter().map(|(_, rows)| rows).sum();
        let nnz = histogram.iter().map(|(len, rows)| len * rows).sum();
        let of_rows = |sum: f64| if rows == 0 { 0.0 } else { sum / rows as f64 };
        let mean = of_rows(nnz as f64);
        let squares: f64 =
            histogram.iter().map(|&(len, n)| n as f64 * (len as f64 - mean).powi(2)).sum();
        let empty = histogram.first().filter(|(len, _)| *len == 0);
        RowStats {
            rows,
            nnz,
            non_empty: rows - empty.map_or(0, |(_, rows)| *rows),
            min: histogram.first().map_or(0, |(len, _)| *len),
            max: histogram.last().map_or(0, |(len, _)| *len),
            mean,
            std: of_rows(squares).sqrt(),
            histogram,
        }
    }

    /// Statistics of the rows of a CSR matrix.
    pub fn of_rows(csr: &CsrPattern) -> Self {
        Self::from_counts(csr.offsets().windows(2).map(|w| (w[1] - w[0]) as usize))
    }

    /// Statistics of the blocks per block row of a CSR matrix converted to blocks.
    ///
    /// # Errors
    /// Returns an error if a block extent is 0.
    pub fn of_block_rows(csr: &CsrPattern, block: (usize, usize)) -> Result<Self> {
        Ok(Self::from_counts(block_row_counts(csr, block)?))
    }

    /// Statistics of the coordinates on one axis of a COO tensor, or `None` if the axis is out of range.
    pub fn of_axis(coo: &CooPattern, axis: usize) -> Option<Self> {
        let mut index = coo.coords().get(axis)?.clone();
        if axis != 0 {
            index.par_sort_unstable();
        }
        let filled = || index.chunk_by(|a, b| a == b).map(<[u32]>::len);
        let empty = coo.shape()[axis] - filled().count();
        Some(Self::from_counts_and_empty(filled(), empty))
    }

    /// Number of groups of `group` entries (0 counts as 1): the sum of ceil(entries / group) over the rows.
    pub fn groups(&self, group: usize) -> u128 {
        let group = group.max(1);
        let each = |&(len, rows): &(usize, usize)| len.div_ceil(group) as u128 * rows as u128;
        self.histogram.iter().map(each).sum()
    }

    /// Cost of a group size in slots: one index slot per group, and one index and one value slot per slot of the group.
    ///
    /// In block formats a value slot is a block.
    pub fn group_cost(&self, group: usize) -> u128 {
        self.groups(group) * (1 + 2 * group as u128)
    }

    /// Group size with the lowest [`RowStats::group_cost`] by exact count.
    ///
    /// `g* = sqrt(nnz / non-empty rows)` balances gathers against scatters for rows of any length (arXiv 2510.17505),
    /// but ignores divisibility: the best size for rows of 16 entries is 16, not 4. The candidates are all sizes up to
    /// 2 g*, the powers of two up to the longest row, and the divisors of the most frequent and of the longest length.
    /// A multiple of four is preferred if it costs at most 1 % more, because kernels load whole aligned groups. Of
    /// equal costs the larger size is chosen. Without entries the result is 1.
    pub fn group(&self) -> usize {
        if self.non_empty == 0 {
            return 1;
        }
        let ideal = (self.nnz as f64 / self.non_empty as f64).sqrt().round() as usize;
        let mut tried: Vec<usize> = (1..=2 * ideal.max(1)).collect();
        tried.extend((0..usize::BITS).map(|bit| 1 << bit).take_while(|&g| g < 2 * self.max));
        let filled = self.histogram.iter().filter(|(len, _)| *len > 0);
        let frequent = filled.max_by_key(|(len, rows)| (*rows, *len));
        for len in [self.max, frequent.map_or(1, |f| f.0)] {
            let small = (1..=len.isqrt()).filter(|d| len.is_multiple_of(*d));
            tried.extend(small.flat_map(|d| [d, len / d]));
        }
        tried.sort_unstable();
        tried.dedup();
        let mut counted: Vec<(u128, usize)> =
            tried.into_par_iter().map(|g| (self.group_cost(g), usize::MAX - g)).collect();
        counted.sort_unstable();
        let least = counted[0].0;
        let near = counted.iter().take_while(|c| c.0 * 100 <= least * 101);
        let mut near = near.map(|c| usize::MAX - c.1);
        let best = usize::MAX - counted[0].1;
        near.find(|g| g.is_multiple_of(4)).unwrap_or(best)
    }
}

/// Slots of a matrix in a format, and how many of them are padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Format, with the chosen group size.
    pub format: Format,
    /// Number of u32 slots in all index arrays.
    pub index: u128,
    /// Number of value slots.
    pub values: u128,
    /// Number of value slots without entry: padding, and zeros inside blocks.
    pub padding: u128,
}

impl Slots {
    /// Bytes of all slots if a value has `value_bytes` bytes.
    pub fn bytes(&self, value_bytes: usize) -> u128 {
        self.index * 4 + self.values * value_bytes as u128
    }

    /// Value slots per entry. It is 1 without padding and also without entries.
    pub fn ratio(&self) -> f64 {
        let entries = self.values - self.padding;
        if entries == 0 { 1.0 } else { self.values as f64 / entries as f64 }
    }
}

/// Counts the slots of a CSR matrix in a format, exactly and without converting the matrix.
///
/// # Errors
/// Returns an error if a block or group size is 0, the grouped axis is not an axis of a matrix, or a group contains
/// more entries (including stored zeros) than N:M stores.
pub fn slots(csr: &CsrPattern, format: Format) -> Result<Slots> {
    let (rows, nnz) = (csr.rows() as u128, csr.nnz() as u128);
    let (format, index, values) = match format {
        Format::Coo => (format, 2 * nnz, nnz),
        Format::Csr => (format, rows + 1 + nnz, nnz),
        Format::Csc => (format, csr.cols() as u128 + 1 + nnz, nnz),
        Format::Ell => {
            let slots = rows * RowStats::of_rows(csr).max as u128;
            (format, slots, slots)
        }
        Format::GroupCoo { axis, group } => {
            check_axis(csr.shape(), axis)?;
            let stats = match axis {
                0 => RowStats::of_rows(csr),
                _ => column_stats(csr)?,
            };
            let (group, groups, slots) = grouped(&stats, group)?;
            let group = Some(group);
            (Format::GroupCoo { axis, group }, groups + slots, slots)
        }
        Format::HybridGroupCoo => {
            let (groups, slots) = RowStats::of_rows(csr).hybrid();
            (format, groups + slots, slots)
        }
        Format::Bsr { block }
        | Format::BlockCoo { block }
        | Format::BlockGroupCoo { block, .. } => {
            let stats = RowStats::of_block_rows(csr, block)?;
            return block_slots(csr, format, &stats);
        }
        Format::Bitmap | Format::Bytemap | Format::Nm { .. } | Format::SlicedEll => {
            let (index, values) = packed_slots(csr, format)?;
            (format, index, values)
        }
    };
    Ok(Slots { format, index, values, padding: values - nnz })
}

/// [`slots`] for given statistics of the block rows. Formats with the same block size share them.
///
/// # Errors
/// Returns an error if a group size is 0, or the format has no blocks.
#[doc(hidden)]
pub fn block_slots(csr: &CsrPattern, format: Format, stats: &RowStats) -> Result<Slots> {
    let blocks = stats.nnz as u128;
    let (format, index, values) = match format {
        Format::Bsr { block } => (format, stats.rows as u128 + 1 + blocks, blocks * area(block)),
        Format::BlockCoo { block } => (format, 2 * blocks, blocks * area(block)),
        Format::BlockGroupCoo { block, group } => {
            let (group, groups, slots) = grouped(stats, group)?;
            let group = Some(group);
            let format = Format::BlockGroupCoo { block, group };
            (format, groups + slots, slots * area(block))
        }
        other => {
            return Err(FormatError::Unsupported {
                what: "blocks".into(),
                reason: format!("{other} has none"),
            });
        }
    };
    Ok(Slots { format, index, values, padding: values - csr.nnz() as u128 })
}

/// Index slots and value slots of formats that pack positions into bits, bytes or half words.
fn packed_slots(csr: &CsrPattern, format: Format) -> Result<(u128, u128)> {
    Ok(match format {
        Format::Bitmap => {
            let (tiles, units) = bitmap_units(csr)?;
            let index = tiles * (bitmap::WORDS as u128 + 1) + 1;
            (index, units * bitmap::ALIGN as u128)
        }
        Format::Bytemap => {
            let (tiles, units) = bytemap_units(csr)?;
            let chunks = units * bytemap::UNIT as u128;
            let index = tiles * (bytemap::COUNT_WORDS as u128 + 1) + 1 + chunks;
            (index, chunks * bytemap::CHUNK as u128)
        }
        Format::Nm { n, m } => {
            let words = words(csr, n, m)?;
            let word_slots = nm::WORD / nm::GROUP * nm::KEPT;
            (words, words * word_slots as u128)
        }
        _ => {
            let (slices, chunks) = sliced_chunks(csr)?;
            let slots = chunks * CHUNK_SLOTS as u128;
            let rows = (slices * SLICE + slices + 1) as u128;
            (rows + 2 * chunks + slots / 2, slots)
        }
    })
}

/// Number of tiles of a bitmap, and of the units of slots for their entries.
fn bitmap_units(csr: &CsrPattern) -> Result<(u128, u128)> {
    let grid = bitmap::checked_grid(csr.rows(), csr.cols())?;
    tile_units(csr, grid, bitmap::TILE, 8, |down| {
        let mut counts = vec![0; grid.across];
        for row in down * bitmap::TILE..((down + 1) * bitmap::TILE).min(csr.rows()) {
            for &col in &csr.columns()[csr.row(row)] {
                counts[col as usize / bitmap::TILE] += 1;
            }
        }
        counts.into_iter().map(|n| bitmap::units(n) as u128).sum()
    })
}

/// Number of tiles of a bytemap, and of the units of chunks of their banks.
fn bytemap_units(csr: &CsrPattern) -> Result<(u128, u128)> {
    let grid = bytemap::checked_grid(csr.rows(), csr.cols())?;
    tile_units(csr, grid, bytemap::TILE_ROWS, 160, |down| {
        let counts = bytemap::counts_of(csr, down, grid.across);
        counts.iter().map(|c| bytemap::units_of(c) as u128).sum()
    })
}

/// Number of tiles, and sum of `units` over the rows of tiles. A thread needs `each` bytes per column of tiles.
fn tile_units(
    csr: &CsrPattern,
    grid: bitmap::Grid,
    height: usize,
    each: usize,
    units: impl Fn(usize) -> u128 + Sync,
) -> Result<(u128, u128)> {
    let threads = rayon::current_num_threads().min(grid.down);
    within_axis(csr, "columns of tiles", grid.across, each * threads)?;
    // Tiles without entries need no units, and there may be millions of them.
    let has_entries = |&down: &usize| {
        let end = ((down + 1) * height).min(csr.rows());
        csr.row(down * height).start < csr.row(end - 1).end
    };
    let full = (0..grid.down).into_par_iter().filter(has_entries);
    Ok((grid.tiles() as u128, full.map(&units).sum()))
}

/// Words of positions in N:M. Returns an error if a group has too many entries.
fn words(csr: &CsrPattern, n: usize, m: usize) -> Result<u128> {
    nm::check_ratio(n, m)?;
    check_groups(csr, |_| true)?;
    Ok(csr.rows() as u128 * csr.cols().div_ceil(nm::WORD) as u128)
}

fn area(block: (usize, usize)) -> u128 {
    block.0 as u128 * block.1 as u128
}

/// Group size (given or chosen), number of groups, and number of their slots.
fn grouped(stats: &RowStats, group: Option<usize>) -> Result<(usize, u128, u128)> {
    let group = group.unwrap_or_else(|| stats.group());
    check::positive("group", group)?;
    let groups = stats.groups(group);
    Ok((group, groups, groups * group as u128))
}

/// Statistics of the entries per column.
fn column_stats(csr: &CsrPattern) -> Result<RowStats> {
    within_axis(csr, "columns", csr.cols(), 8)?;
    let mut counts: Vec<usize> = check::zeroed("counts of columns", csr.cols())?;
    for &c in csr.columns() {
        counts[c as usize] += 1;
    }
    Ok(RowStats::from_counts(counts))
}

/// Returns an error if an array over an axis exceeds the memory limit for the pattern.
fn within_axis(csr: &CsrPattern, what: &'static str, count: usize, each: usize) -> Result<()> {
    let held = allocate::bytes_of(&csr.arrays()) + 8 * csr.nnz() as u64;
    allocate::extent(what, count as u128, each, held)
}
