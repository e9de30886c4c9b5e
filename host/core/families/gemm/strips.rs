//! Work list of the module `wgmma`: the copies of each stage of a CTA tile, and the distribution and order of CTA tiles
//! on multiprocessors. The layout of the lists is defined in `einsparse_kernels::abi`.

mod schedule;

pub(crate) use schedule::{Schedule, Tiles, deal, rounds};

use einsparse_kernels::abi::{A_COLUMNS, HALF, PANEL_BYTES, STEPS, STRIP};
use einsparse_kernels::families::{ABSENT, RECORD_HEAD, record_words};
use einsparse_kernels::table::Row;
use rayon::prelude::*;

use crate::worklist::Runs;

/// Extents of the pieces that a kernel copies, in elements of the product's m and k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pieces {
    pub rows: usize,
    pub depth: usize,
    /// Elements along k of a stage.
    pub stage: usize,
    /// Whether A's memory holds pieces column by column.
    pub transposed: bool,
}

impl Pieces {
    pub(crate) fn of(row: &Row) -> Pieces {
        Pieces {
            rows: row.block.0 as usize,
            depth: row.block.1 as usize,
            stage: PANEL_BYTES / row.dtype.bytes(),
            transposed: row.order & A_COLUMNS != 0,
        }
    }

    fn slices(self) -> usize {
        self.stage / self.depth
    }

    fn per_half(self) -> usize {
        HALF / self.rows
    }

    /// Words of one record.
    pub(crate) fn record(self) -> usize {
        record_words(self.slices(), 2 * self.slices() * self.per_half())
    }
}

/// Piece of A: its index k in the product, its index among the pieces of the row block, and its row and column in A's
/// tensor map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    k: u32,
    place: u32,
    row: u32,
    column: u32,
}

/// Matrix from which pieces are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source<'a> {
    /// Rows and columns of the product's A. Every piece is stored.
    Dense(usize, usize),
    /// Runs of blocks of each block row, the block columns, the extents of a block, and whether A is transposed in the
    /// product.
    Blocks(&'a Runs, &'a [u32], (usize, usize), bool),
}

/// Stages of one row block of 128 rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub record: u32,
    pub stages: u32,
}

/// Records of all row blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Records {
    pub words: Vec<u32>,
    pub spans: Vec<Span>,
}

impl Records {
    /// Creates the records of every row block of a product of `rows` rows. `depth`: terms of each sum.
    pub(crate) fn new(
        source: &Source<'_>,
        pieces: Pieces,
        (rows, depth): (usize, usize),
    ) -> Records {
        let per_column = match source {
            Source::Blocks(runs, columns, _, true) => Some(by_column(runs, columns)),
            _ => None,
        };
        let strips: Vec<Vec<u32>> = (0..rows.div_ceil(STRIP))
            .into_par_iter()
            .map(|strip| {
                let mut list = Vec::new();
                gather(source, pieces, per_column.as_ref(), strip * STRIP, &mut list);
                // Edge blocks extend past `depth`. Their zeros would be multiplied by the next B of a batch, and NaN
                // times zero is not zero.
                list.retain(|piece| (piece.k as usize) < depth);
                list.sort_unstable();
                records(&list, pieces)
            })
            .collect();
        let record = pieces.record();
        let mut at = 0;
        let spans = strips
            .iter()
            .map(|words| {
                let stages = (words.len() / record) as u32;
                at += stages;
                Span { record: at - stages, stages }
            })
            .collect();
        Records { words: strips.concat(), spans }
    }
}

/// Lists of `(block row, block)` for each block column, in ascending order.
fn by_column(runs: &Runs, columns: &[u32]) -> Vec<Vec<(u32, u32)>> {
    let mut lists = Vec::new();
    for (row, &(start, len)) in runs.rows.iter().enumerate() {
        for block in start..start + len {
            let column = columns[block as usize] as usize;
            if lists.len() <= column {
                lists.resize(column + 1, Vec::new());
            }
            lists[column].push((row as u32, block));
        }
    }
    lists
}

/// Appends all pieces of the 128 rows of the product from `first`.
fn gather(
    source: &Source<'_>,
    pieces: Pieces,
    per_column: Option<&Vec<Vec<(u32, u32)>>>,
    first: usize,
    list: &mut Vec<Piece>,
) {
    let places = STRIP / pieces.rows;
    for place in 0..places {
        let row = first + place * pieces.rows;
        let mut push = |k: usize, (y, x): (usize, usize)| {
            list.push(Piece { k: k as u32, place: place as u32, row: y as u32, column: x as u32 });
        };
        match *source {
            Source::Dense(rows, depth) => {
                for k in (0..depth).step_by(pieces.depth) {
                    if row < rows {
                        let at = (row, k);
                        push(k, if pieces.transposed { (k, row) } else { at });
                    }
                }
            }
            Source::Blocks(runs, columns, (bm, bk), _) => {
                // Row and column of element `(r, c)` of a block in the map of the values.
                let lies = |block: usize, r: usize, c: usize| match bk {
                    1 => (block, r),
                    _ => (block * bm + r, c),
                };
                if let Some(per_column) = per_column {
                    let (block_column, inner) = (row / bk, row % bk);
                    for &(block_row, block) in per_column.get(block_column).into_iter().flatten() {
                        for q in (0..bm).step_by(pieces.depth) {
                            push(block_row as usize * bm + q, lies(block as usize, q, inner));
                        }
                    }
                    continue;
                }
                let (block_row, inner) = (row / bm, row % bm);
                let (start, len) = runs.rows.get(block_row).copied().unwrap_or((0, 0));
                let range = start as usize..(start + len) as usize;
                for (block, &column) in range.clone().zip(&columns[range]) {
                    for q in (0..bk).step_by(pieces.depth) {
                        push(column as usize * bk + q, lies(block, inner, q));
                    }
                }
            }
        }
    }
}

/// Packs sorted pieces into stages: pieces at the same k share a slice of B.
fn records(list: &[Piece], pieces: Pieces) -> Vec<u32> {
    let (slices, per_half, record) = (pieces.slices(), pieces.per_half(), pieces.record());
    let step_bytes = PANEL_BYTES / STEPS;
    let step_depth = step_bytes * pieces.stage / PANEL_BYTES;
    let mut words = Vec::new();
    for (i, same_k) in list.chunk_by(|a, b| a.k == b.k).enumerate() {
        let slice = i % slices;
        if slice == 0 {
            let at = words.len();
            words.resize(at + record, ABSENT);
            words[at..at + RECORD_HEAD].fill(0);
        }
        let at = words.len() - record;
        let words = &mut words[at..];
        words[RECORD_HEAD + slice] = same_k[0].k;
        for piece in same_k {
            let (half, inner) = (piece.place as usize / per_half, piece.place as usize % per_half);
            let steps = (pieces.depth / step_depth).max(1);
            let first = slice * pieces.depth / step_depth;
            let sixteenths = piece.place as usize * pieces.rows / 16
                ..((piece.place as usize + 1) * pieces.rows).div_ceil(16);
            for step in first..first + steps {
                words[0] |= 1 << (2 * step + half);
                for r in sixteenths.clone() {
                    words[3] |= 1 << (8 * step + r);
                }
            }
            words[1 + half] = piece.column;
            words[RECORD_HEAD + slices + (slice * 2 + half) * per_half + inner] = piece.row;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of 32 x 32 in row blocks of 128 rows: pieces at the same k share a slice, in the product and in its
    /// transpose.
    #[test]
    fn records_name_every_block_once() {
        let runs =
            Runs { rows: vec![(0, 2), (2, 1), (3, 0), (3, 2), (5, 1)], total: 6, longest: 2 };
        let columns = [0, 3, 3, 1, 2, 0];
        for transposed in [false, true] {
            let pieces = Pieces { rows: 32, depth: 32, stage: 64, transposed };
            let source = Source::Blocks(&runs, &columns, (32, 32), transposed);
            let extents = if transposed { (128, 160) } else { (160, 128) };
            let records = Records::new(&source, pieces, extents);
            let mut found = Vec::new();
            for record in records.words.chunks(pieces.record()) {
                for (i, &row) in record[RECORD_HEAD + 2..][..8].iter().enumerate() {
                    if row != ABSENT {
                        found.push(row / 32);
                        let (slice, half) = (i / 4, i / 2 % 2);
                        assert!(record[0] >> (4 * slice + half) & 1 == 1);
                    }
                }
            }
            found.sort_unstable();
            assert_eq!(found, [0, 1, 2, 3, 4, 5], "transposed: {transposed}");
            let stages: Vec<u32> = records.spans.iter().map(|s| s.stages).collect();
            // Block columns 0, 1, 2, 3, then 0. Transposed: block rows 0, 1, 3, 4.
            assert_eq!(stages, if transposed { vec![2] } else { vec![2, 1] });
        }
    }

    /// Blocks of 128 x 128 with 192 terms: the second half of the last block is not a stage.
    #[test]
    fn records_end_where_the_terms_do() {
        let runs = Runs { rows: vec![(0, 2)], total: 2, longest: 2 };
        for transposed in [false, true] {
            let pieces = Pieces { rows: 64, depth: 64, stage: 64, transposed };
            let (runs, columns) = if transposed {
                let rows = vec![(0, 1), (1, 1)];
                (Runs { rows, ..runs.clone() }, [0, 0])
            } else {
                (runs.clone(), [0, 1])
            };
            let source = Source::Blocks(&runs, &columns, (128, 128), transposed);
            let records = Records::new(&source, pieces, (128, 192));
            let starts: Vec<u32> =
                records.words.chunks(pieces.record()).map(|record| record[RECORD_HEAD]).collect();
            assert_eq!(starts, [0, 64, 128], "transposed: {transposed}");
        }
    }
}
