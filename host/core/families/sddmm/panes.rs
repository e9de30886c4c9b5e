//! Tile schedule of the module `sddmm_tiles`: the tiles of 128 rows and gathered chunks of 64
//! columns that contain entries, the elements that are entries, and the distribution of tiles over multiprocessors.
//! Layout: `einsparse_kernels::abi`.

use einsparse_kernels::abi::{HALF, NO_STRIP, PANEL_BYTES, STRIP};
use einsparse_kernels::families::{CHUNK, MOST_CHUNKS, PICK_GROUPS, PICK_ROWS, Pane, Picks, pick};
use einsparse_kernels::table::Row;
use rayon::prelude::*;

use super::cost::tile_clocks;
use crate::error::{Error, Result};
use crate::families::gemm::strips::{deal, rounds};
use crate::worklist::Runs;

/// Distribution of tiles over thread blocks, and their picks: the elements that are entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Panes {
    /// Tiles by rounds: one for each active thread block.
    pub panes: Vec<Pane>,
    /// Lists of picks, [`PICK_GROUPS`] for each of `panes`.
    pub groups: Vec<Picks>,
    /// Offset of each row of `groups` among the values.
    pub bases: Vec<u32>,
    /// Pairs of picks.
    pub picks: Vec<u32>,
    /// Active thread blocks.
    pub blocks: usize,
    /// Number of tiles.
    pub count: usize,
}

/// Tile and its picks.
#[derive(Clone, Debug)]
struct Draft {
    /// Columns of a whole tile.
    width: u32,
    /// Bytes of an element.
    bytes: u32,
    pane: Pane,
    groups: [Picks; PICK_GROUPS],
    bases: [u32; STRIP],
    picks: Vec<u32>,
}

/// Alignment of a tile's picks in words: 16 bytes, as the copy engine requires.
const PICK_ALIGN: usize = 4;
/// The entries of a tile may take this fraction of a multiprocessor's fair share: a half.
const SHARES: f64 = 2.0;
/// Entries of a tile that is never cut.
const LEAST_ENTRIES: f64 = 4096.0;

/// Number of chunks of 128 rows and 64 columns that contain an entry.
pub(crate) fn chunks(runs: &Runs, columns: &[u32]) -> u64 {
    (0..runs.rows.len().div_ceil(STRIP))
        .into_par_iter()
        .map(|strip| held(runs, columns, strip).len() as u64)
        .sum()
}

/// Slots of the entries of a row.
fn entries(runs: &Runs, row: usize) -> std::ops::Range<usize> {
    let (start, len) = runs.rows.get(row).copied().unwrap_or((0, 0));
    start as usize..start as usize + len as usize
}

/// Chunks that contain entries of these 128 rows, in ascending order, and the number of entries of each.
fn held(runs: &Runs, columns: &[u32], strip: usize) -> Vec<(u32, u32)> {
    let rows = strip * STRIP..(strip + 1) * STRIP;
    let last = rows.clone().filter_map(|row| {
        let own = entries(runs, row);
        columns[own].last().copied()
    });
    let Some(last) = last.max() else {
        return Vec::new();
    };
    let mut counts = vec![0u32; last as usize / CHUNK + 1];
    for row in rows {
        for &column in &columns[entries(runs, row)] {
            counts[column as usize / CHUNK] += 1;
        }
    }
    let chunks = (0..).zip(counts);
    chunks.filter(|(_, count)| *count > 0).collect()
}

/// Combines chunks into tiles of at most `across` chunks. Tiles of several chunks have at most `limit` entries.
fn tiles(held: &[(u32, u32)], across: usize, limit: u32) -> Vec<Vec<u32>> {
    let mut tiles: Vec<Vec<u32>> = Vec::new();
    let mut entries = 0u32;
    for &(chunk, count) in held {
        match tiles.last_mut() {
            Some(tile) if tile.len() < across && entries + count <= limit => {
                tile.push(chunk);
                entries += count;
            }
            _ => {
                tiles.push(vec![chunk]);
                entries = count;
            }
        }
    }
    tiles
}

impl Panes {
    /// Creates the tiles of the kernel `row` for a pattern with these columns, over `k` terms.
    ///
    /// # Errors
    /// If the number of picks exceeds 32 bits.
    pub(crate) fn new(
        row: &Row,
        (runs, columns): (&Runs, &[u32]),
        k: usize,
        multiprocessors: usize,
    ) -> Result<Panes> {
        let across = row.columns as usize / CHUNK;
        let stages = k.div_ceil(PANEL_BYTES / row.dtype.bytes());
        let limit = most_entries(row, (runs, columns), stages, multiprocessors);
        let drafts: Vec<Draft> = (0..runs.rows.len().div_ceil(STRIP))
            .into_par_iter()
            .flat_map_iter(|strip| {
                drafts((runs, columns), strip, (across, limit, row.dtype.bytes() as u32))
            })
            .collect();
        let clocks = |i: &u32| {
            let draft = &drafts[*i as usize];
            tile_clocks(row, stages, 2.0 * draft.picks.len() as f64) as u64
        };
        let (lists, _) = deal((0..drafts.len() as u32).collect(), multiprocessors, clocks);
        Panes::in_order(&drafts, &rounds(&lists, NO_STRIP), lists.len())
    }

    /// Arranges the tiles and their picks in execution order.
    fn in_order(drafts: &[Draft], order: &[u32], blocks: usize) -> Result<Panes> {
        let mut list = Panes { blocks, count: drafts.len(), ..Panes::default() };
        let mut start = 0usize;
        for &i in order {
            let Some(draft) = drafts.get(i as usize) else {
                list.panes.push(Pane { row: NO_STRIP, ..Pane::default() });
                list.groups.extend([Picks::default(); PICK_GROUPS]);
                list.bases.extend([0; STRIP]);
                continue;
            };
            let picks = Picks { start: start as u32, words: draft.picks.len() as u32 };
            list.panes.push(Pane { picks, ..draft.pane });
            list.groups.extend(
                draft.groups.map(|own| Picks { start: (start + own.start as usize) as u32, ..own }),
            );
            list.bases.extend(draft.bases);
            list.picks.extend(&draft.picks);
            start = (start + draft.picks.len()).next_multiple_of(PICK_ALIGN);
            list.picks.resize(start, 0);
        }
        if start > u32::MAX as usize {
            return Err(Error::Overflow {
                what: "pairs of entries".into(),
                value: start as u128,
                limit: u128::from(u32::MAX),
            });
        }
        Ok(list)
    }
}

/// Max entries of a tile of several chunks. If a few tiles had all full rows, their multiprocessors would finish long
/// after the others.
fn most_entries(
    row: &Row,
    (runs, columns): (&Runs, &[u32]),
    stages: usize,
    multiprocessors: usize,
) -> u32 {
    let across = u64::from(row.columns) / CHUNK as u64;
    let whole = chunks(runs, columns).div_ceil(across) as f64;
    let clocks = |entries: f64| tile_clocks(row, stages, entries);
    let each = clocks(runs.total as f64 / whole.max(1.0));
    let fair = each * whole / multiprocessors.max(1) as f64;
    let entry = (clocks(1e6) - clocks(0.0)) / 1e6;
    (fair / SHARES / entry).max(LEAST_ENTRIES) as u32
}

/// Tiles of 128 rows, `across` chunks each, for elements of `bytes` bytes.
fn drafts(
    (runs, columns): (&Runs, &[u32]),
    strip: usize,
    (across, limit, bytes): (usize, u32, u32),
) -> Vec<Draft> {
    let held = held(runs, columns, strip);
    let mut left: [_; STRIP] = std::array::from_fn(|i| entries(runs, strip * STRIP + i));
    let mut draft = |chunks: &[u32]| {
        let mut pane = Pane {
            row: (strip * STRIP) as u32,
            live: (chunks.len() as u32) << 8,
            columns: [0; MOST_CHUNKS],
            ..Pane::default()
        };
        for (column, chunk) in pane.columns.iter_mut().zip(chunks) {
            *column = chunk * CHUNK as u32;
        }
        let mut draft = Draft {
            width: (across * CHUNK) as u32,
            bytes,
            pane,
            groups: Default::default(),
            bases: [0; STRIP],
            picks: Vec::new(),
        };
        let end = chunks.last().map_or(0, |chunk| (chunk + 1) * CHUNK as u32);
        for (i, left) in left.iter_mut().enumerate() {
            let group = i / PICK_ROWS;
            if i % PICK_ROWS == 0 {
                draft.groups[group].start = draft.picks.len() as u32;
            }
            let len = columns[left.clone()].partition_point(|&column| column < end);
            let own = left.start..left.start + len;
            left.start += len;
            if len > 0 {
                draft.pane.live |= 1 << (i / HALF);
                let first = draft.groups[group].start;
                draft.run(i, (own, columns), (chunks, first));
            }
            draft.groups[group].words = draft.picks.len() as u32 - draft.groups[group].start;
        }
        draft
    };
    let tiles = tiles(&held, across, limit);
    tiles.iter().map(|chunks| draft(chunks)).collect()
}

impl Draft {
    /// Appends the picks of one row's entries `own` in `chunks`; `first` is the start of its list.
    fn run(
        &mut self,
        row: usize,
        (own, columns): (std::ops::Range<usize>, &[u32]),
        (chunks, first): (&[u32], u32),
    ) {
        // The low half of the first pair is for an even slot: that of the first entry, or the one before.
        let slot = own.start as u32 & !1;
        let at = 2 * (self.picks.len() as u32 - first);
        self.bases[row] = slot.wrapping_sub(at);
        let from = self.picks.len();
        let pairs = (own.end as u32).div_ceil(2) - slot / 2;
        let row = (row % PICK_ROWS) as u32;
        // The kernel reads the row from the low half, even if that is not an entry.
        self.picks.resize(from + pairs as usize, row * self.width);
        let mut c = 0;
        for p in own {
            let column = columns[p];
            while chunks[c] != column / CHUNK as u32 {
                c += 1;
            }
            let inside = c as u32 * CHUNK as u32 + column % CHUNK as u32;
            let half = pick(row, inside, self.width, self.bytes);
            self.picks[from + p / 2 - slot as usize / 2] |= half << (16 * (p % 2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use einsparse_kernels::families::{CHUNK, PICKED, SddmmTilesParams, picked};
    use einsparse_kernels::table::rows_of;
    use std::collections::BTreeMap;

    /// Every entry is picked once, from its element of a tile and into its slot. Pairs are aligned.
    #[test]
    fn every_entry_is_picked_once() {
        let lens = |row: usize| [3, 0, 70, 1, 300, 9, 64][row % 7] * usize::from(row / 64 % 3 != 1);
        let (mut rows, mut columns, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for row in 0..390 {
            let start = columns.len();
            let step = 1 + row % 3;
            let own = (0..lens(row)).map(|i| (i * step + row * 5 % 200) as u32);
            places.extend(own.clone().map(|column| (row as u32, column)));
            columns.extend(own);
            rows.push((start as u32, lens(row) as u32));
        }
        let runs = Runs { rows, total: columns.len() as u64, longest: 300 };
        for row in rows_of::<SddmmTilesParams>() {
            let bytes = row.dtype.bytes() as u32;
            let list = Panes::new(row, (&runs, &columns), 100, 5).unwrap();
            let mut slots = BTreeMap::new();
            for (t, pane) in list.panes.iter().enumerate() {
                assert!(pane.row != NO_STRIP || list.groups[t * PICK_GROUPS].words == 0);
                for g in 0..PICK_GROUPS {
                    let own = list.groups[t * PICK_GROUPS + g];
                    if own.words > 0 {
                        assert!(pane.live >> (g / 4) & 1 != 0);
                    }
                    let words = &list.picks[own.start as usize..][..own.words as usize];
                    for (i, word) in words.iter().enumerate() {
                        let (low, _) = picked(*word & 0xffff, row.columns, bytes);
                        let base = list.bases[(t * PICK_GROUPS + g) * PICK_ROWS + low as usize];
                        assert_eq!(base % 2, 0);
                        for h in 0..2 {
                            let pick = word >> (16 * h) & 0xffff;
                            if pick & PICKED == 0 {
                                continue;
                            }
                            let (r, c) = picked(pick, row.columns, bytes);
                            assert_eq!(r, low);
                            let chunk = c as usize / CHUNK;
                            assert!(chunk < (pane.live >> 8) as usize);
                            let column = pane.columns[chunk] + c % CHUNK as u32;
                            let slot = base.wrapping_add(2 * i as u32 + h);
                            let place = (pane.row + (g * PICK_ROWS) as u32 + r, column);
                            assert!(slots.insert(slot, place).is_none());
                        }
                    }
                }
            }
            let found: Vec<_> = slots.into_values().collect();
            assert_eq!(found, places, "{}", row.name);
            assert_eq!(list.panes.len() % list.blocks, 0);
            let most = chunks(&runs, &columns) as usize;
            assert!(
                list.count >= most.div_ceil(row.columns as usize / CHUNK) && list.count <= most
            );
        }
    }
}
