//! Windows of eight rows, and *vectors* of 8 x 1: the columns of a window that contain an entry (FlashSparse, arXiv
//! 2412.11007, section 3.1: ME-BCRS). FlashSparse stores whole vectors. This format stores one bit per row and keeps
//! the values in row order. Only the pattern is prepared; new values need no preparation.

use crate::error::*;
use rayon::prelude::*;

/// Rows per window.
pub const WINDOW: usize = 8;
/// Vectors per step, which are multiplied together.
pub const STEP: usize = 16;

/// Pattern of a matrix as vectors. The rows of the matrix are stored one after the other.
///
/// ```
/// use einsparse_formats::vectors::VectorPattern;
/// // Rows 0 and 1 share column 5; row 1 has column 7 too. Rows are (first value, entries).
/// let a = VectorPattern::from_rows(9, &[(0, 1), (1, 2)], &[5, 5, 7])?;
/// assert_eq!((a.windows()[0].vectors, a.vectors()), (2, 2));
/// assert_eq!(a.steps()[0].columns[..2], [5, 7]);
/// assert_eq!(a.steps()[0].rows[..2], [0b01, 1 << 16 | 0b11]);
/// assert_eq!(a.to_rows(), [vec![(0, 5)], vec![(1, 5), (2, 7)]]);
/// # Ok::<(), einsparse_formats::FormatError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VectorPattern {
    shape: [usize; 2],
    windows: Vec<VectorWindow>,
    steps: Vec<VectorStep>,
}

/// Window of eight rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorWindow {
    /// Index of its first step.
    pub first: u32,
    /// Number of its vectors: columns in which a row of the window has an entry.
    pub vectors: u32,
    /// Index of the first value of any of its rows.
    pub base: u32,
    /// Bit r is set if row r has entries.
    pub filled: u8,
}

/// Sixteen vectors of a window. The last step of a window repeats its last column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorStep {
    /// Columns, ascending.
    pub columns: [u32; STEP],
    /// One word per row. Bit v is set if vector v has an entry in the row. The upper half is the number of values
    /// before the first of these, counted from the base of the window.
    pub rows: [u32; WINDOW],
}

impl VectorPattern {
    /// Finds the vectors of a matrix with `cols` columns, in parallel. `rows` contains the first value and the number
    /// of entries of each row. The ascending columns of a row are at the same positions of `columns`.
    ///
    /// # Errors
    /// Returns [`FormatError::Overflow`] if the values of eight rows span more than 65,536, or there are more than 2^32
    /// steps.
    pub fn from_rows(cols: usize, rows: &[(u32, u32)], columns: &[u32]) -> Result<Self> {
        // Pieces have many windows, so that there are few vectors of steps.
        let each = (rows.len() / WINDOW / 256).clamp(1, 1024);
        let pieces: Vec<Piece> = rows
            .par_chunks(each * WINDOW)
            .map(|rows| Piece::of(rows, columns))
            .collect::<Result<_, _>>()?;
        let total: usize = pieces.iter().map(|piece| piece.steps.len()).sum();
        crate::check::extent("steps of vectors", total)?;
        let mut windows = Vec::with_capacity(rows.len().div_ceil(WINDOW));
        let mut steps = Vec::with_capacity(total);
        for piece in pieces {
            let before = steps.len() as u32;
            windows.extend(
                piece
                    .windows
                    .into_iter()
                    .map(|window| VectorWindow { first: window.first + before, ..window }),
            );
            steps.extend(piece.steps);
        }
        Ok(VectorPattern { shape: [rows.len(), cols], windows, steps })
    }

    /// Extents of the matrix.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Windows of the matrix, top to bottom.
    pub fn windows(&self) -> &[VectorWindow] {
        &self.windows
    }

    /// Steps of all windows.
    pub fn steps(&self) -> &[VectorStep] {
        &self.steps
    }

    /// Number of vectors of all windows.
    pub fn vectors(&self) -> u64 {
        let vectors = self.windows.iter().map(|window| u64::from(window.vectors));
        vectors.sum()
    }

    /// Value index and column of every entry, row by row: the inverse of [`VectorPattern::from_rows`].
    pub fn to_rows(&self) -> Vec<Vec<(u32, u32)>> {
        let rows = 0..self.shape[0];
        rows.into_par_iter().map(|row| self.row(row)).collect()
    }

    fn row(&self, row: usize) -> Vec<(u32, u32)> {
        let window = self.windows[row / WINDOW];
        let steps = (window.vectors as usize).div_ceil(STEP);
        let mut entries = Vec::new();
        for step in &self.steps[window.first as usize..][..steps] {
            let word = step.rows[row % WINDOW];
            let there = (0..STEP).filter(|v| word >> v & 1 != 0);
            let first = window.base + (word >> 16);
            entries.extend((first..).zip(there.map(|v| step.columns[v])));
        }
        entries
    }
}

/// Iterator over the vectors of eight rows, left to right: a merge of eight ascending lists.
struct Merge<'a> {
    columns: &'a [u32],
    /// Position of the next entry of each row, and the end of the row.
    next: [u32; WINDOW],
    end: [u32; WINDOW],
    /// Column of the next entry of each row, or `NONE`, which is above every column.
    heads: [u64; WINDOW],
}

impl<'a> Merge<'a> {
    fn new(rows: &[(u32, u32)], columns: &'a [u32]) -> Self {
        let (mut next, mut end) = ([0; WINDOW], [0; WINDOW]);
        for (r, &(start, len)) in rows.iter().enumerate() {
            (next[r], end[r]) = (start, start + len);
        }
        let mut merge = Merge { columns, next, end, heads: [NONE; WINDOW] };
        (0..WINDOW).for_each(|r| merge.look(r));
        merge
    }

    fn look(&mut self, r: usize) {
        self.heads[r] = if self.next[r] < self.end[r] {
            u64::from(self.columns[self.next[r] as usize])
        } else {
            NONE
        };
    }

    /// Returns the next column and the rows with an entry there as bits, and advances past it.
    fn vector(&mut self) -> Option<(u32, u8)> {
        let column = self.heads.iter().fold(NONE, |a, &b| a.min(b));
        if column == NONE {
            return None;
        }
        let mut rows = 0;
        for r in 0..WINDOW {
            if self.heads[r] == column {
                rows |= 1 << r;
                self.next[r] += 1;
                self.look(r);
            }
        }
        Some((column as u32, rows))
    }
}

/// Marker for no column. Columns are below 2^32.
const NONE: u64 = u64::MAX;

/// Consecutive windows.
struct Piece {
    windows: Vec<VectorWindow>,
    steps: Vec<VectorStep>,
}

impl Piece {
    fn of(rows: &[(u32, u32)], columns: &[u32]) -> Result<Piece> {
        let mut piece =
            Piece { windows: Vec::with_capacity(rows.len().div_ceil(WINDOW)), steps: Vec::new() };
        for rows in rows.chunks(WINDOW) {
            piece.window(rows, columns)?;
        }
        Ok(piece)
    }

    /// Appends a window.
    fn window(&mut self, rows: &[(u32, u32)], columns: &[u32]) -> Result<()> {
        let (base, span) = span(rows);
        crate::check::at_most("values that eight rows span", span as u128, SPAN as u128)?;
        let mut window =
            VectorWindow { first: self.steps.len() as u32, vectors: 0, base, filled: 0 };
        let mut merge = Merge::new(rows, columns);
        loop {
            // The count of a row without remaining entries is meaningless: its bits are never set.
            let before = merge.next.map(|next| next.wrapping_sub(base) << 16);
            let Some(first) = merge.vector() else { break };
            let mut step = VectorStep { columns: [first.0; STEP], rows: before };
            let rest = (1..STEP).map_while(|v| Some((v, merge.vector()?)));
            for (v, (column, rows)) in std::iter::once((0, first)).chain(rest) {
                step.columns[v..].fill(column);
                (0..WINDOW).for_each(|r| step.rows[r] |= u32::from(rows >> r & 1) << v);
                window.filled |= rows;
                window.vectors += 1;
            }
            self.steps.push(step);
        }
        self.windows.push(window);
        Ok(())
    }
}

/// Estimates the number of steps of a matrix, and of its longest window, from a sample of its windows. The kernel
/// choice uses it before a [`VectorPattern`] exists. The result is exact for few rows. It is 0 without entries, or if
/// [`VectorPattern::from_rows`] would return an error.
pub fn sampled_steps(rows: &[(u32, u32)], columns: &[u32]) -> (u64, u64) {
    let count = rows.len().div_ceil(WINDOW);
    if rows.par_chunks(WINDOW).any(|rows| span(rows).1 > SPAN) {
        return (0, 0);
    }
    let sampled = count.min(SAMPLE);
    let of = |i: usize| {
        let first = i * count / sampled * WINDOW;
        steps_of(&rows[first..rows.len().min(first + WINDOW)], columns)
    };
    let (sum, longest) = (0..sampled)
        .into_par_iter()
        .map(|i| {
            let steps = of(i);
            (steps, steps)
        })
        .reduce(|| (0, 0), |a, b| (a.0 + b.0, a.1.max(b.1)));
    (sum * count as u64 / sampled.max(1) as u64, longest)
}

/// Maximum span of the values of eight rows: half a word counts them.
const SPAN: usize = 1 << 16;

/// Index of the first value of any of the rows, and the distance to the end of the last.
fn span(rows: &[(u32, u32)]) -> (u32, usize) {
    let filled = rows.iter().filter(|(_, len)| *len > 0);
    let base = filled.clone().map(|&(start, _)| start).min().unwrap_or(0);
    let end = filled.map(|&(start, len)| start + len).max().unwrap_or(0);
    (base, (end - base) as usize)
}

/// Number of windows that [`sampled_steps`] reads.
const SAMPLE: usize = 512;

/// Entries per piece. The vectors of windows with more entries are counted in parallel.
const COUNTED: usize = 1 << 12;

fn steps_of(rows: &[(u32, u32)], columns: &[u32]) -> u64 {
    let entries: usize = rows.iter().map(|&(_, len)| len as usize).sum();
    let pieces = entries.div_ceil(COUNTED).max(1);
    let slice = |&(start, len): &(u32, u32)| &columns[start as usize..(start + len) as usize];
    let longest = rows.iter().max_by_key(|row| row.1).map_or(&[][..], slice);
    // Pieces begin at columns of the longest row, so that no vector is in two pieces.
    let bound = |piece: usize| match piece {
        0 => 0,
        _ if piece == pieces => u64::from(u32::MAX) + 1,
        _ => u64::from(longest[piece * longest.len() / pieces]),
    };
    let within = |piece: usize| {
        let ends = [bound(piece), bound(piece + 1)];
        let of = |row: &(u32, u32)| {
            let at = ends.map(|end| slice(row).partition_point(|&c| u64::from(c) < end) as u32);
            (row.0 + at[0], at[1] - at[0])
        };
        let own: Vec<(u32, u32)> = rows.iter().map(of).collect();
        let mut merge = Merge::new(&own, columns);
        std::iter::from_fn(|| merge.vector()).count()
    };
    let vectors: usize = (0..pieces).into_par_iter().map(within).sum();
    vectors.div_ceil(STEP) as u64
}
