//! Fill of blocks: counts the blocks of several sizes in one parallel pass over a CSR pattern, without building them.

use std::collections::BTreeMap;
use std::ops::Range;

use rayon::prelude::*;

use crate::convert::row_tasks;
use crate::error::*;
use crate::{CsrPattern, Pattern, allocate, check};

/// Common block sizes, rows x columns: squares first, then rectangles.
pub const BLOCKS: [(usize, usize); 10] = [
    (16, 16),
    (32, 32),
    (64, 64),
    (128, 128),
    (32, 1),
    (64, 1),
    (1, 64),
    (16, 32),
    (64, 32),
    (128, 64),
];

/// Non-empty blocks of one size, on a grid that starts at row and column 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockFill {
    /// Rows and columns of a block.
    pub block: (usize, usize),
    /// Number of blocks that contain an entry.
    pub blocks: u64,
    /// Number of entries of the matrix.
    pub nnz: u64,
}

impl BlockFill {
    /// Number of elements that the blocks store: blocks x rows x columns of a block, including elements past the edges.
    pub fn stored(&self) -> u128 {
        u128::from(self.blocks) * (self.block.0 as u128 * self.block.1 as u128)
    }

    /// Entries per stored element, at most 1. It is also 1 without entries.
    pub fn fill(&self) -> f64 {
        match self.stored() {
            0 => 1.0,
            stored => self.nnz as f64 / stored as f64,
        }
    }
}

/// Block sizes of the same width. Each column is divided by the width once for all of them.
struct Width {
    columns: u32,
    /// Height of the blocks, and the index of the block size.
    sizes: Vec<(usize, usize)>,
}

/// Marks of each block column for each size: the last block row, plus 1, in which a block was found.
///
/// Each block row is visited once, so marks need not be cleared between block rows.
type Marks = Vec<Vec<Vec<u32>>>;

fn marks(widths: &[Width], cols: usize) -> Result<Marks> {
    let of_width = |w: &Width| {
        let blocks = cols.div_ceil(w.columns as usize);
        let each = w.sizes.iter();
        each.map(|_| check::zeroed("marks of block columns", blocks)).collect()
    };
    widths.iter().map(of_width).collect()
}

/// Adds the blocks of the rows to `counts`. `rows` must start at a block row of every size.
fn count(
    csr: &CsrPattern,
    widths: &[Width],
    rows: Range<usize>,
    marks: &mut Marks,
    counts: &mut [u64],
) {
    for row in rows {
        let columns = &csr.columns()[csr.row(row)];
        for (width, marks) in widths.iter().zip(&mut *marks) {
            for (&(height, size), marks) in width.sizes.iter().zip(marks) {
                let now = (row / height) as u32 + 1;
                let mut found = 0;
                let mut last = u32::MAX;
                for &column in columns {
                    let block = column / width.columns;
                    if block == last {
                        continue;
                    }
                    last = block;
                    let mark = &mut marks[block as usize];
                    found += u64::from(*mark != now);
                    *mark = now;
                }
                counts[size] += found;
            }
        }
    }
}

/// Common multiple of the block heights: at multiples of it, a block row of every size starts.
fn common_height(blocks: &[(usize, usize)], rows: usize) -> usize {
    let gcd = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let lcm = |a: usize, b: usize| (a / gcd(a, b)).saturating_mul(b);
    // One range of all rows is always sufficient.
    blocks.iter().map(|b| b.0).fold(1, lcm).min(rows.max(1))
}

/// Counts the non-empty blocks of each size in one parallel pass, without building them.
///
/// The scratch memory is one u32 per block column, size and thread. Fewer threads run if this is much more than the
/// memory of the matrix.
///
/// ```
/// use einsparse_formats::{CsrPattern, fill};
/// // [ 1 1 0 0 ]
/// // [ 0 1 0 1 ]
/// let pattern = CsrPattern::new(2, 4, vec![0, 2, 4], vec![0, 1, 1, 3])?;
/// let fills = fill::block_fills(&pattern, &[(2, 2), (1, 4)])?;
/// assert_eq!((fills[0].blocks, fills[0].fill()), (2, 0.5));
/// assert_eq!((fills[1].blocks, fills[1].fill()), (2, 0.5));
/// # Ok::<(), einsparse_formats::FormatError>(())
/// ```
///
/// # Errors
/// Returns an error if a block extent is 0 or exceeds u32, or if the marks of the block columns cannot be allocated.
pub fn block_fills(csr: &CsrPattern, blocks: &[(usize, usize)]) -> Result<Vec<BlockFill>> {
    blocks.iter().try_for_each(|&block| check::block(block))?;
    let mut widths: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    for (size, &(height, width)) in blocks.iter().enumerate() {
        widths.entry(width).or_default().push((height, size));
    }
    let widths: Vec<Width> =
        widths.into_iter().map(|(width, sizes)| Width { columns: width as u32, sizes }).collect();
    let height = common_height(blocks, csr.rows());
    let row = |strip: usize| csr.rows().min(strip.saturating_mul(height));
    let strips = row_tasks(csr.rows().div_ceil(height), |s| csr.offsets()[row(s)] as usize);
    let held = allocate::bytes_of(&csr.arrays()) + 8 * csr.nnz() as u64;
    for width in &widths {
        let (count, each) = (csr.cols().div_ceil(width.columns as usize), 4 * width.sizes.len());
        // At most an eighth of the limit, because the caller allocates memory too.
        allocate::extent("block columns", count as u128, 8 * each, held)?;
    }
    let none = || (vec![0u64; blocks.len()], None);
    let step = |(mut counts, scratch): (Vec<u64>, Option<Marks>), strips: &Range<usize>| {
        let mut scratch = match scratch {
            Some(scratch) => scratch,
            None => marks(&widths, csr.cols())?,
        };
        let rows = row(strips.start)..row(strips.end);
        count(csr, &widths, rows, &mut scratch, &mut counts);
        Ok((counts, Some(scratch)))
    };
    let add = |mut a: Vec<u64>, b: Vec<u64>| {
        a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
        a
    };
    // A matrix of many columns and few entries is counted by few threads, so that their marks stay below an eighth of
    // the limit.
    let of_one: usize =
        widths.iter().map(|w| w.sizes.len() * csr.cols().div_ceil(w.columns as usize)).sum();
    let room = (allocate::limits().of(held) / 32) as usize;
    let threads = (room / of_one.max(1)).max(1);
    let counts = strips
        .par_iter()
        .with_min_len(strips.len().div_ceil(threads))
        .try_fold(none, step)
        .map(|counted| counted.map(|(counts, _)| counts))
        .try_reduce(|| none().0, |a, b| Ok::<_, FormatError>(add(a, b)))?;
    let fill = |(&block, blocks): (&(usize, usize), u64)| BlockFill {
        block,
        blocks,
        nnz: csr.columns().len() as u64,
    };
    Ok(blocks.iter().zip(counts).map(fill).collect())
}
