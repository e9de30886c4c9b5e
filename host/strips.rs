//! The work list of the `wgmma` family: what the copies of each stage of a strip are, which strips there are,
//! and which multiprocessor takes which, in which order. Layout of the lists: `einsparse_kernels::abi`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use einsparse_formats::{AnySparse, Element};
use einsparse_kernels::abi::{
    A_COLUMNS, ABSENT, HALF, NO_STRIP, PANEL_BYTES, RECORD_HEAD, STEPS, STRIP, Strip, record_words,
};
use einsparse_kernels::table::Row;
use rayon::prelude::*;

use crate::worklist::Runs;

/// What pieces a kernel moves, in elements of the product's m and k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pieces {
    pub rows: usize,
    pub depth: usize,
    /// Elements along k of a stage.
    pub stage: usize,
    /// A's memory holds pieces column by column.
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

/// A piece of A: its place along k in the product, which of the strip's pieces of rows it is, and where it lies in A's
/// map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    k: u32,
    place: u32,
    row: u32,
    column: u32,
}

/// A matrix as its pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source<'a> {
    /// Rows and columns of the product's A; every piece is there.
    Dense(usize, usize),
    /// Runs of blocks of each block row, the block columns, the extents of a block, and whether the product takes the
    /// transpose.
    Blocks(&'a Runs, &'a [u32], (usize, usize), bool),
}

/// Array of block columns of a format of blocks.
pub(crate) fn block_columns<T: Element>(matrix: &AnySparse<T>) -> Option<&[u32]> {
    match matrix {
        AnySparse::Bsr(a) => Some(a.pattern().columns()),
        AnySparse::BlockCoo(a) => Some(a.pattern().block_cols()),
        AnySparse::BlockGroupCoo(a) => Some(a.pattern().block_cols()),
        _ => None,
    }
}

/// The stages of one strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub record: u32,
    pub stages: u32,
}

/// Records of all strips.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Records {
    pub words: Vec<u32>,
    pub spans: Vec<Span>,
}

impl Records {
    /// Writes down the stages of every strip of `rows` rows of the product.
    pub(crate) fn new(source: &Source<'_>, pieces: Pieces, rows: usize) -> Records {
        let per_column = match source {
            Source::Blocks(runs, columns, _, true) => Some(by_column(runs, columns)),
            _ => None,
        };
        let strips: Vec<Vec<u32>> = (0..rows.div_ceil(STRIP))
            .into_par_iter()
            .map(|strip| {
                let mut list = Vec::new();
                gather(
                    source,
                    pieces,
                    per_column.as_ref(),
                    strip * STRIP,
                    &mut list,
                );
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
                Span {
                    record: at - stages,
                    stages,
                }
            })
            .collect();
        Records {
            words: strips.concat(),
            spans,
        }
    }
}

/// For each block column its `(block row, block)`s in ascending order.
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

/// All pieces of the 128 rows of the product from `first`.
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
            list.push(Piece {
                k: k as u32,
                place: place as u32,
                row: y as u32,
                column: x as u32,
            });
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
                // Where row r and column c of a block lie in the map of the values.
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
            let (half, inner) = (
                piece.place as usize / per_half,
                piece.place as usize % per_half,
            );
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

/// What a strip costs beside its stages, in stages: filling the pipeline and sending C out.
const STRIP_STAGES: u64 = 2;
/// What a piece of a cut strip costs more: its partial sums written and read again, at 128 KB a piece.
const PART_STAGES: u64 = 12;
/// Strips that follow each other in the order of tiles before the next column tile: their A and the columns' B share L2.
const RASTER: usize = 8;

/// Who takes what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// Strips by rounds, one for each thread block that takes part.
    pub strips: Vec<Strip>,
    /// Thread blocks that take part.
    pub blocks: usize,
    /// Strips that are not padding of a round.
    pub count: usize,
    /// Partial sums.
    pub slots: u32,
    /// Strips and column tiles that were cut.
    pub cut: u32,
    /// Load of the busiest thread block, in stages.
    pub longest: u64,
}

impl Schedule {
    /// Deals every strip and tile of `columns` columns to `blocks` thread blocks, longest first to the least loaded. Strips far longer
    /// than a fair share are cut along k when that shortens the whole.
    pub(crate) fn new(spans: &[Span], columns: usize, n: usize, blocks: usize) -> Schedule {
        let tiles = n.div_ceil(columns);
        let total: u64 = spans
            .iter()
            .map(|s| u64::from(s.stages) + STRIP_STAGES)
            .sum();
        let fair = (total * tiles as u64).div_ceil(blocks.max(1) as u64);
        let longest = spans.iter().map(|s| u64::from(s.stages)).max().unwrap_or(0);
        let mut best = Self::with_limit(spans, columns, tiles, blocks, u32::MAX);
        for share in 1..=4 {
            let limit = (fair / share).max(4);
            if limit < longest {
                let cut = Self::with_limit(spans, columns, tiles, blocks, limit as u32);
                // A cut costs memory and a second pass over it: it has to pay.
                if cut.longest * 20 < best.longest * 19 {
                    best = cut;
                }
            }
        }
        best
    }

    /// The first record of each thread block, one after another; zeros for one that starts with a strip without stages.
    pub(crate) fn heads(&self, records: &[u32], words: usize) -> Vec<u32> {
        let mut heads = Vec::with_capacity(self.blocks * words);
        for strip in &self.strips[..self.blocks] {
            let at = strip.record as usize * words;
            match records.get(at..at + words) {
                Some(record) if strip.stages > 0 => heads.extend(record),
                _ => heads.resize(heads.len() + words, 0),
            }
        }
        heads
    }

    fn with_limit(
        spans: &[Span],
        columns: usize,
        tiles: usize,
        blocks: usize,
        limit: u32,
    ) -> Schedule {
        let mut tasks = Vec::new();
        let (mut slots, mut cut) = (0, 0);
        for group in (0..spans.len()).step_by(RASTER) {
            for tile in 0..tiles {
                let rows = spans.iter().enumerate().skip(group).take(RASTER);
                for (row, &Span { record, stages }) in rows {
                    let parts = stages.div_ceil(limit).max(1);
                    let each = stages.div_ceil(parts);
                    for part in 0..parts {
                        let at = part * each;
                        tasks.push(Strip {
                            row: (row * STRIP) as u32,
                            column: (tile * columns) as u32,
                            record: record + at.min(stages),
                            stages: each.min(stages.saturating_sub(at)),
                            first: slots,
                            part,
                            parts,
                            counter: cut,
                        });
                    }
                    if parts > 1 {
                        slots += parts;
                        cut += 1;
                    }
                }
            }
        }
        let cost = |s: &Strip| {
            let more = if s.parts > 1 { PART_STAGES } else { 0 };
            u64::from(s.stages) + STRIP_STAGES + more
        };
        let count = tasks.len();
        tasks.sort_by_key(|task| Reverse(cost(task)));
        let mut loads: BinaryHeap<_> = (0..blocks).map(|b| Reverse((0u64, b))).collect();
        let mut lists = vec![Vec::new(); blocks];
        for task in tasks {
            let Some(Reverse((load, block))) = loads.pop() else {
                break;
            };
            loads.push(Reverse((load + cost(&task), block)));
            lists[block].push(task);
        }
        lists.retain(|list| !list.is_empty());
        // Every other thread block begins with its short strips, so that not all send their C at the same time.
        lists
            .iter_mut()
            .skip(1)
            .step_by(2)
            .for_each(|list| list.reverse());
        let rounds = lists.iter().map(Vec::len).max().unwrap_or(0);
        let none = Strip {
            row: NO_STRIP,
            ..Strip::default()
        };
        let at = |round: usize| {
            lists
                .iter()
                .map(move |list| *list.get(round).unwrap_or(&none))
        };
        let strips = (0..rounds).flat_map(at).collect();
        let longest = loads.into_iter().map(|Reverse((load, _))| load).max();
        Schedule {
            strips,
            blocks: lists.len(),
            count,
            slots,
            cut,
            longest: longest.unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(stages: &[u32]) -> Vec<Span> {
        let mut record = 0;
        stages
            .iter()
            .map(|&stages| {
                record += stages;
                Span {
                    record: record - stages,
                    stages,
                }
            })
            .collect()
    }

    /// Every stage of every strip and column tile is dealt exactly once, whatever is cut.
    #[test]
    fn every_stage_is_dealt_once() {
        for (stages, n, blocks) in [
            (vec![], 64, 3),
            (vec![0, 5, 0], 300, 2),
            (vec![7; 9], 256, 132),
            (vec![400, 3, 1, 0, 2], 513, 132),
            (vec![64; 64], 8192, 132),
        ] {
            let spans = spans(&stages);
            let schedule = Schedule::new(&spans, 256, n, blocks);
            let mut met = std::collections::BTreeMap::new();
            let strips = schedule.strips.iter().filter(|s| s.row != NO_STRIP);
            for strip in strips.clone() {
                let key = (strip.row as usize / STRIP, strip.column);
                let parts: &mut Vec<Strip> = met.entry(key).or_default();
                parts.push(*strip);
            }
            assert_eq!(met.len(), stages.len() * n.div_ceil(256));
            assert_eq!(strips.count(), schedule.count);
            let mut counters = std::collections::BTreeSet::new();
            for ((row, _), mut parts) in met {
                parts.sort_by_key(|s| s.part);
                assert_eq!(parts.len(), parts[0].parts as usize);
                let mut at = spans[row].record;
                for (i, part) in parts.iter().enumerate() {
                    assert_eq!((part.part, part.record), (i as u32, at));
                    at += part.stages;
                }
                assert_eq!(at, spans[row].record + spans[row].stages);
                if parts.len() > 1 {
                    assert!(counters.insert(parts[0].counter));
                    assert!(parts.iter().all(|p| p.first == parts[0].first));
                }
            }
            assert_eq!(counters.len() as u32, schedule.cut);
            // The head of a block's list is met first; none of its strips comes after a hole.
            for block in 0..schedule.blocks {
                let mut list = schedule.strips.iter().skip(block).step_by(schedule.blocks);
                assert!(list.next().is_some_and(|s| s.row != NO_STRIP));
                assert!(list.is_sorted_by_key(|s| s.row == NO_STRIP));
            }
        }
    }

    /// Blocks of 32 x 32 in strips of 128 rows: pieces at the same k share a slice, of the product and its transpose.
    #[test]
    fn records_name_every_block_once() {
        let runs = Runs {
            rows: vec![(0, 2), (2, 1), (3, 0), (3, 2), (5, 1)],
            total: 6,
            longest: 2,
        };
        let columns = [0, 3, 3, 1, 2, 0];
        for transposed in [false, true] {
            let pieces = Pieces {
                rows: 32,
                depth: 32,
                stage: 64,
                transposed,
            };
            let source = Source::Blocks(&runs, &columns, (32, 32), transposed);
            let records = Records::new(&source, pieces, if transposed { 128 } else { 160 });
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
            // Block columns 0, 1, 2, 3 and then 0; block rows 0, 1, 3, 4.
            assert_eq!(stages, if transposed { vec![2] } else { vec![2, 1] });
        }
    }
}
