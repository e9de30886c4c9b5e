//! Conversions of CSR to block formats. Two parallel passes over the block rows, without a sort: the first finds the
//! block columns of each block row with a bit set, the second copies every entry into its block.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::cost;
use super::tasks::{cut, prefix_sum, row_tasks};
use crate::error::*;
use crate::parallel;
use crate::stats::RowStats;
use crate::{
    BlockCoo, BlockCooPattern, BlockGroupCoo, BlockGroupCooPattern, Bsr, BsrPattern, Csr,
    CsrPattern, Element, Format, PAD, Pattern, Sparse, allocate, check,
};

/// Set of block columns that returns them in ascending order.
///
/// `summary` has one bit per word of `words`. A wide set with few elements is therefore drained without reading all
/// words.
struct ColumnSet {
    words: Vec<u64>,
    summary: Vec<u64>,
}

impl ColumnSet {
    fn new(columns: usize) -> Result<Self> {
        let words = columns.div_ceil(64);
        Ok(ColumnSet {
            words: check::zeroed("block columns", words)?,
            summary: check::zeroed("block columns", words.div_ceil(64))?,
        })
    }

    fn insert(&mut self, column: u32) {
        let c = column as usize;
        self.words[c / 64] |= 1 << (c % 64);
        self.summary[c / 4096] |= 1 << (c / 64 % 64);
    }

    fn drain_into(&mut self, out: &mut Vec<u32>) {
        for (s, summary) in self.summary.iter_mut().enumerate() {
            while *summary != 0 {
                let w = s * 64 + summary.trailing_zeros() as usize;
                *summary &= *summary - 1;
                let mut word = std::mem::take(&mut self.words[w]);
                while word != 0 {
                    out.push((w * 64) as u32 + word.trailing_zeros());
                    word &= word - 1;
                }
            }
        }
    }
}

/// Blocked view of a CSR pattern.
struct Grid<'a> {
    csr: &'a CsrPattern,
    block: (usize, usize),
    rows: usize,
    cols: usize,
    tasks: Vec<Range<usize>>,
}

impl<'a> Grid<'a> {
    fn new(csr: &'a CsrPattern, block: (usize, usize)) -> Result<Self> {
        check::block(block)?;
        let (rows, cols) = (csr.rows().div_ceil(block.0), csr.cols().div_ceil(block.1));
        let at = |b: usize| csr.offsets()[csr.rows().min(b.saturating_mul(block.0))] as usize;
        Ok(Grid { csr, block, rows, cols, tasks: row_tasks(rows, at) })
    }

    fn rows_of(&self, block_row: usize) -> Range<usize> {
        let start = block_row * self.block.0;
        start..self.csr.rows().min(start.saturating_add(self.block.0))
    }

    /// Calls `f(block column, entries)` for each run of entries of a row in one block.
    #[inline]
    fn runs(&self, row: usize, mut f: impl FnMut(u32, Range<usize>)) {
        let columns = self.csr.columns();
        let width = self.block.1;
        let Range { start: mut p, end } = self.csr.row(row);
        while p < end {
            let block = columns[p] / width as u32;
            let last = (block * width as u32).saturating_add(width as u32 - 1);
            // Columns ascend: if the entry `width` positions later is still in the block, all entries between are too.
            let mut q = p + width;
            if q > end || columns[q - 1] > last {
                q = p + 1;
                while q < end && columns[q] <= last {
                    q += 1;
                }
            }
            f(block, p..q);
            p = q;
        }
    }

    /// Arrays of the BSR pattern: the offsets of the block rows, and the block columns.
    fn blocks(&self) -> Result<(Vec<u32>, Vec<u32>)> {
        let found = parallel::collect(self.tasks.len(), 1, &|at| self.find(&self.tasks[at]));
        let found = found.into_iter().collect::<Result<Vec<_>, _>>()?;
        let counts = || found.iter().flat_map(|(counts, _)| counts);
        check::fits("blocks", counts().map(|&n| u128::from(n)).sum())?;
        let mut offsets = check::reserved("offsets", self.rows + 1)?;
        let mut end = 0;
        offsets.push(0);
        offsets.extend(counts().map(|count| {
            end += count;
            end
        }));
        let mut columns = check::reserved("block columns", end as usize)?;
        found.iter().for_each(|(_, own)| columns.extend_from_slice(own));
        Ok((offsets, columns))
    }

    /// Number of blocks of each block row of a task, and their block columns.
    fn find(&self, task: &Range<usize>) -> Result<(Vec<u32>, Vec<u32>)> {
        let mut set = ColumnSet::new(self.cols)?;
        let mut counts = check::reserved("offsets", task.len())?;
        let mut columns = Vec::new();
        for block_row in task.clone() {
            let before = columns.len();
            let mut is_empty = true;
            for row in self.rows_of(block_row) {
                is_empty &= self.csr.row(row).is_empty();
                self.runs(row, |block, _| set.insert(block));
            }
            // The time to drain the set is proportional to the number of columns.
            if !is_empty {
                set.drain_into(&mut columns);
            }
            counts.push((columns.len() - before) as u32);
        }
        Ok((counts, columns))
    }

    /// Values of all block slots. Block row `b` has the block columns `columns[offsets[b]..offsets[b + 1]]`, and its
    /// first block has slot `first(b)`.
    fn fill<T: Element>(
        &self,
        csr: &Csr<T>,
        (offsets, columns): (&[u32], &[u32]),
        first: impl Fn(usize) -> usize + Sync,
    ) -> Result<Vec<T>> {
        let (bm, bk) = self.block;
        let area = bm * bk;
        let slots = check::product("slots", &[first(self.rows), bm, bk])?;
        cost::slots::<T>(slots, first(self.rows), csr.held())?;
        let (values, mut blocks) = (csr.values(), check::zeroed("values", slots)?);
        let parts = cut(&mut blocks, &self.tasks, |b| first(b) * area);
        let refused = Mutex::new(None);
        parallel::each_of(parts, &|own, part: &mut [T]| {
            let task = &self.tasks[own];
            let mut slot_of: Vec<u32> = match check::zeroed("block columns", self.cols) {
                Ok(slots) => slots,
                Err(reason) => {
                    *refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
                    return;
                }
            };
            for b in task.clone() {
                let touched = &columns[offsets[b] as usize..offsets[b + 1] as usize];
                for (slot, &column) in touched.iter().enumerate() {
                    slot_of[column as usize] = slot as u32;
                }
                let part = &mut part[(first(b) - first(task.start)) * area..];
                for (r, row) in self.rows_of(b).enumerate() {
                    self.runs(row, |block, run| {
                        let start = slot_of[block as usize] as usize * area + r * bk;
                        let line = &mut part[start..start + bk];
                        self.place(line, block * bk as u32, &values[run.clone()], run);
                    });
                }
            }
        });
        let refused = refused.into_inner().unwrap_or_else(PoisonError::into_inner);
        refused.map_or(Ok(blocks), Err)
    }

    /// Copies the entries of one row in one block to their columns.
    #[inline]
    fn place<T: Element>(&self, line: &mut [T], base: u32, values: &[T], run: Range<usize>) {
        if values.len() == line.len() {
            line.copy_from_slice(values);
        } else {
            for (&c, &v) in self.csr.columns()[run].iter().zip(values) {
                line[(c - base) as usize] = v;
            }
        }
    }
}

/// Number of blocks of each block row.
pub(crate) fn block_row_counts(csr: &CsrPattern, block: (usize, usize)) -> Result<Vec<usize>> {
    let grid = Grid::new(csr, block)?;
    let held = allocate::bytes_of(&csr.arrays()) + 8 * csr.nnz() as u64;
    let threads = rayon::current_num_threads().min(grid.tasks.len());
    let words = grid.cols.div_ceil(64);
    allocate::extent("words of block columns", words as u128, 9 * threads, held)?;
    let found = parallel::collect(grid.tasks.len(), 1, &|at| grid.find(&grid.tasks[at]));
    let found: Result<Vec<_>, _> = found.into_iter().collect();
    let mut counts = check::reserved("counts of blocks", grid.rows)?;
    for (own, _) in found? {
        counts.extend(own.into_iter().map(|n| n as usize));
    }
    Ok(counts)
}

/// Row of every element, for rows that start at `offsets`.
pub(super) fn rows_of(offsets: &[u32]) -> Result<Vec<u32>> {
    let mut rows = check::reserved("block rows", offsets.last().map_or(0, |&end| end as usize))?;
    let runs = (0u32..).zip(offsets.windows(2));
    rows.extend(runs.flat_map(|(row, w)| std::iter::repeat_n(row, (w[1] - w[0]) as usize)));
    Ok(rows)
}

/// Blocks in groups.
pub(super) struct Groups {
    pub(super) group: usize,
    /// Start of the groups of each block row.
    starts: Vec<u32>,
    /// Block row of each group.
    pub(super) rows: Vec<u32>,
    /// Block column of each slot, or [`PAD`].
    pub(super) cols: Vec<u32>,
}

impl Groups {
    /// Groups the blocks of a BSR pattern. `None` selects the group size of [`RowStats::group`].
    pub(super) fn new(
        (offsets, columns): (&[u32], &[u32]),
        block: (usize, usize),
        group: Option<usize>,
    ) -> Result<Self> {
        let counts = || offsets.windows(2).map(|w| (w[1] - w[0]) as usize);
        let group = group.unwrap_or_else(|| RowStats::from_counts(counts()).group());
        check::positive("group", group)?;
        let starts = prefix_sum("groups", counts().map(|n| n.div_ceil(group)))?;
        let groups = starts[starts.len() - 1] as usize;
        check::product("slots", &[groups, group, block.0, block.1])?;
        let mut cols = check::reserved("block_cols", groups * group)?;
        for (run, end) in offsets.windows(2).zip(&starts[1..]) {
            cols.extend_from_slice(&columns[run[0] as usize..run[1] as usize]);
            cols.resize(*end as usize * group, PAD);
        }
        Ok(Groups { group, rows: rows_of(&starts)?, starts, cols })
    }
}

/// Converts CSR to BSR. Every block with an entry becomes dense.
///
/// # Errors
/// Returns an error if a block extent is 0, the number of elements of the blocks exceeds u32, or allocation fails.
pub fn csr_to_bsr<T: Element>(csr: &Csr<T>, block: (usize, usize)) -> Result<Bsr<T>> {
    let p = csr.pattern();
    cost::from_csr(csr, Format::Bsr { block })?;
    let grid = Grid::new(p, block)?;
    let (offsets, columns) = grid.blocks()?;
    let values = grid.fill(csr, (&offsets, &columns), |b| offsets[b] as usize)?;
    // SAFETY: the block columns of a block row ascend and are inside the grid.
    let pattern = unsafe { BsrPattern::new_unchecked(p.rows(), p.cols(), block, offsets, columns) };
    Sparse::new(pattern, values)
}

/// Converts CSR to BlockCOO. Every block with an entry becomes dense.
///
/// # Errors
/// Returns an error if a block extent is 0, the number of elements of the blocks exceeds u32, or allocation fails.
pub fn csr_to_block_coo<T: Element>(csr: &Csr<T>, block: (usize, usize)) -> Result<BlockCoo<T>> {
    let p = csr.pattern();
    cost::from_csr(csr, Format::BlockCoo { block })?;
    let grid = Grid::new(p, block)?;
    let (offsets, cols) = grid.blocks()?;
    let values = grid.fill(csr, (&offsets, &cols), |b| offsets[b] as usize)?;
    let rows = rows_of(&offsets)?;
    // SAFETY: block rows ascend, the block columns of each block row ascend, and all are inside the grid.
    let pattern = unsafe { BlockCooPattern::new_unchecked(p.rows(), p.cols(), block, rows, cols) };
    Sparse::new(pattern, values)
}

/// Converts CSR to BlockGroupCOO. `None` selects the group size of [`RowStats::group`] for the blocks per block row.
///
/// # Errors
/// Returns an error if a block extent or `group` is 0, the number of elements of the blocks exceeds u32, or
/// allocation fails.
pub fn csr_to_block_group_coo<T: Element>(
    csr: &Csr<T>,
    block: (usize, usize),
    group: Option<usize>,
) -> Result<BlockGroupCoo<T>> {
    let p = csr.pattern();
    cost::from_csr(csr, Format::BlockGroupCoo { block, group })?;
    let grid = Grid::new(p, block)?;
    let (offsets, columns) = grid.blocks()?;
    let Groups { group, starts, rows, cols } = Groups::new((&offsets, &columns), block, group)?;
    let values = grid.fill(csr, (&offsets, &columns), |b| starts[b] as usize * group)?;
    // SAFETY: block rows ascend, the block columns of each ascend inside the grid, and padding follows them.
    let pattern = unsafe {
        BlockGroupCooPattern::new_unchecked(p.rows(), p.cols(), block, group, rows, cols)
    };
    Sparse::new(pattern, values)
}
