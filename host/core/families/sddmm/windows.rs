//! Tile schedule of the module `sampled`: the blocks of a pattern in each window of 128 rows and
//! gathered columns, and the distribution of windows over multiprocessors. Layout of the lists:
//! `einsparse_kernels::abi`.

use std::collections::BTreeMap;

use einsparse_kernels::abi::{HALF, NO_STRIP, PANEL_BYTES, STRIP};
use einsparse_kernels::families::{NO_PLACE, PLACE_ELEMENTS, PLACE_GROUPS, PLACE_ROWS, Window};
use einsparse_kernels::table::Row;
use rayon::prelude::*;

use crate::families::gemm::strips::{deal, rounds};
use crate::worklist::Runs;

/// Cost of a window in addition to its stages, in copies of 8 KB: filling the ring and storing blocks.
const WINDOW_COPIES: u64 = 24;
/// Extra cost of a part of a window that is cut along k, in copies of 8 KB: its partial sums.
const PART_COPIES: u64 = 48;
/// Max parts along k.
const MOST_PARTS: u32 = 8;

/// Distribution of windows over thread blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Windows by rounds: one for each active thread block.
    pub windows: Vec<Window>,
    /// First columns of the pieces, for each of `windows`.
    pub columns: Vec<u32>,
    /// Places (indices among the values of S), for each table.
    pub places: Vec<u32>,
    /// Active thread blocks.
    pub blocks: usize,
    /// Parts along k of each window.
    pub parts: u32,
    /// Partial sums.
    pub slots: u32,
    /// Arrival counters.
    pub counters: u32,
    /// Number of windows before they are cut.
    pub count: usize,
}

/// Window, with the columns and the places of its pieces.
#[derive(Clone, Debug, Default)]
struct Draft {
    row: u32,
    live: u32,
    columns: Vec<u32>,
    places: Vec<u32>,
}

/// Pattern of blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks<'a> {
    pub runs: &'a Runs,
    pub columns: &'a [u32],
    pub block: (usize, usize),
}

impl Windows {
    /// Creates the windows of the kernel `row` for a pattern, over `k` terms.
    pub(crate) fn new(row: &Row, blocks: Blocks<'_>, k: usize, multiprocessors: usize) -> Windows {
        let (piece, width) = (row.block.1 as usize, row.columns as usize);
        let rows = blocks.runs.rows.len() * blocks.block.0;
        let drafts: Vec<Draft> = (0..rows.div_ceil(STRIP))
            .into_par_iter()
            .flat_map_iter(|strip| drafts(blocks, strip * STRIP, piece, width / piece))
            .collect();
        let stages = k.div_ceil(PANEL_BYTES / row.dtype.bytes()) as u32;
        let most =
            if drafts.len() >= 4 * multiprocessors { 1 } else { MOST_PARTS.min(stages.max(1)) };
        let lists = (1..=most)
            .map(|parts| {
                let (lists, longest) =
                    deal(tasks(&drafts, stages, parts), multiprocessors, |w: &Window| {
                        cost(w, piece)
                    });
                (longest, parts, lists)
            })
            .min_by_key(|(longest, parts, _)| (*longest, *parts));
        let Some((_, parts, lists)) = lists else {
            return Windows::default();
        };
        let none = Window { row: NO_STRIP, ..Window::default() };
        let windows = rounds(&lists, none);
        let pieces = width / piece;
        let columns = windows.iter().flat_map(|w| {
            let draft = drafts.get(w.window as usize);
            let own = draft.map_or(&[][..], |d| &d.columns);
            (0..pieces).map(move |i| own.get(i).copied().unwrap_or(0))
        });
        let cut = if parts > 1 { drafts.len() as u32 } else { 0 };
        Windows {
            columns: columns.collect(),
            places: drafts.iter().flat_map(|d| &d.places).copied().collect(),
            blocks: lists.len(),
            parts,
            slots: cut * parts,
            counters: cut,
            count: drafts.len(),
            windows,
        }
    }
}

/// Cost of a window, in copies of 8 KB.
fn cost(window: &Window, piece: usize) -> u64 {
    let halves = u64::from(window.live & 15 != 0) + u64::from(window.live >> 4 & 15 != 0);
    let chunks = (u64::from(window.live >> 8) * piece as u64).div_ceil(HALF as u64);
    let cut = if window.parts >> 16 > 1 { PART_COPIES } else { 0 };
    u64::from(window.stages) * (halves + chunks) + WINDOW_COPIES + cut
}

/// All windows, each in `parts` parts.
fn tasks(drafts: &[Draft], stages: u32, parts: u32) -> Vec<Window> {
    let each = stages.div_ceil(parts);
    let mut tasks = Vec::with_capacity(drafts.len() * parts as usize);
    for (i, draft) in drafts.iter().enumerate() {
        let i = i as u32;
        for part in 0..parts {
            let at = (part * each).min(stages);
            tasks.push(Window {
                row: draft.row,
                window: i,
                live: draft.live,
                stage: at,
                stages: each.min(stages - at),
                first: i * parts,
                parts: part | parts << 16,
                counter: i,
            });
        }
    }
    tasks
}

/// Windows of the 128 rows from `first`. Columns that both halves need come first, then those of one half: a chunk that
/// only one half needs costs the other half nothing.
fn drafts(blocks: Blocks<'_>, first: usize, piece: usize, pieces: usize) -> Vec<Draft> {
    let (bm, bk) = blocks.block;
    let mut met: BTreeMap<usize, [u32; PLACE_GROUPS]> = BTreeMap::new();
    for group in 0..PLACE_GROUPS {
        let row = first + group * PLACE_ROWS;
        let (block_row, inner) = (row / bm, row % bm);
        let (start, len) = blocks.runs.rows.get(block_row).copied().unwrap_or((0, 0));
        let slots = start as usize..(start + len) as usize;
        for (block, &block_column) in slots.clone().zip(&blocks.columns[slots]) {
            for column in (0..bk).step_by(piece) {
                let at = block_column as usize * bk + column;
                let place = (block * bm + inner) * bk + column;
                met.entry(at).or_insert([NO_PLACE; PLACE_GROUPS])[group] =
                    (place / PLACE_ELEMENTS) as u32;
            }
        }
    }
    let mut list: Vec<_> = met.into_iter().collect();
    let needs = |groups: &[u32; PLACE_GROUPS]| {
        let half = |h: usize| groups[h * 4..][..4].iter().any(|&p| p != NO_PLACE);
        (half(0), half(1))
    };
    list.sort_by_key(|(column, groups)| {
        let order = match needs(groups) {
            (true, true) => 0,
            (true, false) => 1,
            _ => 2,
        };
        (order, *column)
    });
    let per_chunk = HALF / piece;
    list.chunks(pieces)
        .map(|list| {
            let mut draft = Draft {
                row: first as u32,
                live: (list.len() as u32) << 8,
                columns: list.iter().map(|(column, _)| *column as u32).collect(),
                places: vec![NO_PLACE; PLACE_GROUPS * pieces],
            };
            for (i, (_, groups)) in list.iter().enumerate() {
                let (upper, lower) = needs(groups);
                let chunk = i / per_chunk;
                draft.live |= u32::from(upper) << chunk | u32::from(lower) << (4 + chunk);
                for (group, &place) in groups.iter().enumerate() {
                    draft.places[group * pieces + i] = place;
                }
            }
            draft
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use einsparse_kernels::families::SampledParams;
    use einsparse_kernels::table::rows_of;

    /// Every piece of every 16 rows of every block has exactly one place, with and without cuts, for each piece width.
    #[test]
    fn windows_name_every_place_once() {
        let lens = [3u32, 0, 40, 1, 7, 2, 2];
        let mut at = 0;
        let rows = lens.map(|len| {
            at += len;
            (at - len, len)
        });
        let rows = rows.to_vec();
        let columns: Vec<u32> = lens.iter().flat_map(|&len| (0..len).map(|i| i * 3)).collect();
        let runs = Runs { rows, total: u64::from(at), longest: 40 };
        for row in rows_of::<SampledParams>() {
            for (bm, bk) in [(16, 16), (32, 32), (64, 64), (128, 128), (16, 32), (64, 32)] {
                let piece = row.block.1 as usize;
                if bk % piece != 0 {
                    continue;
                }
                let blocks = Blocks { runs: &runs, columns: &columns, block: (bm, bk) };
                let list = Windows::new(row, blocks, 1000, 132);
                let mut places: Vec<_> = list.places.iter().filter(|&&p| p != NO_PLACE).collect();
                places.sort_unstable();
                let per_block = bm / PLACE_ROWS * bk / piece;
                assert_eq!(places.len(), at as usize * per_block);
                places.dedup();
                assert_eq!(places.len(), at as usize * per_block, "{bm} x {bk}");
                let stages: u32 = list.windows.iter().map(|w| w.stages).sum();
                assert_eq!(stages as usize, list.count * 1000usize.div_ceil(64));
                assert_eq!(list.windows.len() % list.blocks, 0);
                assert_eq!(list.columns.len(), list.windows.len() * row.columns as usize / piece);
            }
        }
    }
}
