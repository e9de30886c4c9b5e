//! Conversions of block formats to CSR. Zeros inside a block cannot be distinguished from fill, so they do not become
//! entries.

use std::ops::Range;

use super::cost;
use super::tasks::{csr_by_rows, prefix_sum};
use crate::error::*;
use crate::{
    AsSparse, BlockCoo, BlockGroupCoo, Bsr, Csr, Element, PAD, Pattern, Sparse, allocate, check,
};

/// Dense blocks by block row.
struct Blocks<'a, T> {
    shape: (usize, usize),
    block: (usize, usize),
    /// Start of the slots of each block row.
    starts: &'a [u32],
    /// Block column of every slot, or PAD.
    columns: &'a [u32],
    values: &'a [T],
}

impl<T: Element> Blocks<'_, T> {
    fn slots_of(&self, row: usize) -> Range<usize> {
        let b = row / self.block.0;
        self.starts[b] as usize..self.starts[b + 1] as usize
    }

    /// Calls `f(column, value)` for each entry of a row. Columns ascend.
    fn entries(&self, row: usize, mut f: impl FnMut(u32, T)) {
        let (bm, bk) = self.block;
        for slot in self.slots_of(row).take_while(|&slot| self.columns[slot] != PAD) {
            let base = self.columns[slot] as usize * bk;
            let line = (slot * bm + row % bm) * bk;
            let inside = bk.min(self.shape.1 - base);
            for (c, &v) in self.values[line..line + inside].iter().enumerate() {
                if v != T::ZERO {
                    f((base + c) as u32, v);
                }
            }
        }
    }

    fn to_csr(&self) -> Result<Csr<T>> {
        let count = |row| {
            let mut n = 0;
            self.entries(row, |_, _| n += 1);
            n
        };
        let counts: Vec<usize> = allocate::each("counts of rows", self.shape.0, &count)?;
        let offsets = prefix_sum("entries", counts.into_iter())?;
        // SAFETY: the block columns of a block row ascend inside the grid, and edge blocks are clipped to the shape.
        unsafe {
            csr_by_rows(self.shape, offsets, |row, columns, values| {
                let mut p = 0;
                self.entries(row, |c, v| {
                    columns[p] = c;
                    values[p] = v;
                    p += 1;
                });
            })
        }
    }
}

/// Start of the slots of each block row, from the ascending block rows of groups of `group` slots.
fn starts(rows: usize, block_rows: &[u32], group: usize) -> Result<Vec<u32>> {
    let mut counts: Vec<u32> = check::zeroed("offsets", rows)?;
    for &b in block_rows {
        counts[b as usize] += group as u32;
    }
    prefix_sum("blocks", counts.into_iter().map(|n| n as usize))
}

fn to_csr<P: Pattern, T: Element>(
    blocks: &Sparse<P, T>,
    block: (usize, usize),
    starts: &[u32],
    columns: &[u32],
) -> Result<Csr<T>> {
    let shape = (blocks.shape()[0], blocks.shape()[1]);
    Blocks { shape, block, starts, columns, values: blocks.values() }.to_csr()
}

/// Converts BSR to CSR, without zeros inside the blocks.
///
/// # Errors
/// Returns an error if allocation fails.
pub fn bsr_to_csr<T: Element>(bsr: &Bsr<T>) -> Result<Csr<T>> {
    cost::to_csr(bsr.as_sparse())?;
    let p = bsr.pattern();
    to_csr(bsr, p.block(), p.offsets(), p.columns())
}

/// Converts BlockCOO to CSR, without zeros inside the blocks.
///
/// # Errors
/// Returns an error if allocation fails.
pub fn block_coo_to_csr<T: Element>(blocks: &BlockCoo<T>) -> Result<Csr<T>> {
    cost::to_csr(blocks.as_sparse())?;
    let p = blocks.pattern();
    let starts = starts(p.rows().div_ceil(p.block().0), p.block_rows(), 1)?;
    to_csr(blocks, p.block(), &starts, p.block_cols())
}

/// Converts BlockGroupCOO to CSR, without zeros inside the blocks.
///
/// # Errors
/// Returns an error if allocation fails.
pub fn block_group_coo_to_csr<T: Element>(blocks: &BlockGroupCoo<T>) -> Result<Csr<T>> {
    cost::to_csr(blocks.as_sparse())?;
    let p = blocks.pattern();
    let starts = starts(p.rows().div_ceil(p.block().0), p.block_rows(), p.group())?;
    to_csr(blocks, p.block(), &starts, p.block_cols())
}
