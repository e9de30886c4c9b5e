//! Distribution of stages over thread blocks. CTA tiles are cut along k so that all thread blocks get equal shares.

use einsparse_kernels::families::{BIT_AHEAD, BIT_PANEL, BIT_TILE, BitPiece};

/// Min stages of a thread block. With fewer, its start costs more than it saves the other thread blocks.
const LEAST: usize = 4;
/// Every CTA tile gets the same number of thread blocks if at least `ALIGNED` of `ALIGNED_OF` thread blocks have work
/// then.
const ALIGNED: usize = 15;
const ALIGNED_OF: usize = 16;

/// Distribution of pieces over thread blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// Pieces in the order of the stages.
    pub(crate) pieces: Vec<BitPiece>,
    /// First piece of each thread block, and one past the last.
    lists: Vec<usize>,
    pub(crate) strips: usize,
    /// Number of CTA tiles that are cut, and of the slots of their pieces.
    pub(crate) cut: u32,
    pub(crate) slots: u32,
}

/// Tile rows of a CTA tile: first row, number of tile rows, first tile, and distance of tiles along k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Band {
    pub(crate) row: usize,
    pub(crate) height: usize,
    pub(crate) tile: usize,
    pub(crate) step: usize,
}

/// All bands of up to `groups` tile rows. A band never crosses a panel.
pub(crate) fn bands(m: usize, across: usize, groups: usize) -> Vec<Band> {
    let down = m.div_ceil(BIT_TILE);
    let mut all = Vec::new();
    for panel in (0..down).step_by(BIT_PANEL) {
        let step = (down - panel).min(BIT_PANEL);
        for within in (0..step).step_by(groups) {
            all.push(Band {
                row: (panel + within) * BIT_TILE,
                height: (step - within).min(groups),
                tile: panel * across + within,
                step,
            });
        }
    }
    all
}

impl Schedule {
    /// Distributes the stages of all CTA tiles, in order, evenly over at most `most` thread blocks.
    pub(crate) fn new(
        bands: &[Band],
        entries: &[u64],
        across: usize,
        tiles: (usize, usize),
        most: usize,
    ) -> Schedule {
        let (columns, count) = tiles;
        let strips = bands.len() * count;
        // A CTA tile is written even if A is without columns.
        let depth = across.max(1);
        let units = strips * depth;
        let blocks = units.div_ceil(LEAST).clamp(usize::from(units > 0), most.max(1));
        let mut schedule = Schedule { strips, ..Schedule::default() };
        // Each CTA tile gets the same number of thread blocks if few thread blocks are lost by that. No thread block
        // then finishes parts of two tiles.
        let each = blocks / strips.max(1);
        let blocks = if each * strips * ALIGNED_OF >= blocks * ALIGNED {
            (each * strips).max(usize::from(units > 0))
        } else {
            blocks
        };
        let bound = |block: usize| units * block / blocks.max(1);
        for block in 0..blocks {
            schedule.lists.push(schedule.pieces.len());
            let (mut at, end) = (bound(block), bound(block + 1));
            while at < end {
                let (strip, place) = (at / depth, at % depth);
                let stages = (end - at).min(depth - place);
                let band = bands[strip / count];
                schedule.pieces.push(BitPiece {
                    row: band.row as u32,
                    column: (strip % count * columns) as u32,
                    tile: (band.tile + place * band.step) as u32,
                    step: band.step as u32,
                    place: place as u32,
                    stages: stages.min(across) as u32,
                    height: band.height as u32,
                    entries: entries[strip / count].min(u64::from(u32::MAX)) as u32,
                    parts: 1 << 16,
                    ..BitPiece::default()
                });
                at += stages;
            }
        }
        schedule.lists.push(schedule.pieces.len());
        schedule.number_parts();
        schedule
    }

    /// Assigns slots and a counter to each CTA tile that is cut. Its pieces are adjacent.
    fn number_parts(&mut self) {
        let same = |a: &BitPiece, b: &BitPiece| (a.row, a.column) == (b.row, b.column);
        for strip in self.pieces.chunk_by_mut(same) {
            let count = strip.len() as u32;
            if count == 1 {
                continue;
            }
            for (part, piece) in strip.iter_mut().enumerate() {
                piece.first = self.slots;
                piece.parts = part as u32 | count << 16;
                piece.counter = self.cut;
            }
            self.slots += count;
            self.cut += 1;
        }
    }

    /// Pieces by rounds. Rounds past the end of a thread block's list are empty.
    pub(crate) fn rounds(&self) -> Vec<BitPiece> {
        let blocks = self.blocks() as usize;
        let rounds = self.lists.windows(2).map(|w| w[1] - w[0]).max();
        let mut all = vec![BitPiece::default(); rounds.unwrap_or(0) * blocks];
        for (block, list) in self.lists.windows(2).enumerate() {
            for (round, piece) in self.pieces[list[0]..list[1]].iter().enumerate() {
                all[round * blocks + block] = *piece;
            }
        }
        all
    }

    /// For the first stages of every thread block: the starts of the values of its `groups` tiles, and the end of the
    /// last.
    pub(crate) fn first_starts(&self, starts: &[u32], groups: usize) -> Vec<u32> {
        let each = groups + 1;
        let mut all = vec![0; self.blocks() as usize * BIT_AHEAD * each];
        for (block, lines) in all.chunks_mut(BIT_AHEAD * each).enumerate() {
            let Some(piece) = self.pieces.get(self.lists[block]) else {
                continue;
            };
            let stages = lines.chunks_mut(each).take(piece.stages as usize);
            for (stage, line) in stages.enumerate() {
                let tile = piece.tile as usize + stage * piece.step as usize;
                for (j, start) in line.iter_mut().enumerate() {
                    *start = starts[tile + j.min(piece.height as usize)];
                }
            }
        }
        all
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.lists.len().saturating_sub(1) as u32
    }
}

pub(crate) fn as_words(pieces: &[BitPiece]) -> &[[u32; 12]] {
    // SAFETY: a piece is twelve words, without padding.
    unsafe { std::slice::from_raw_parts(pieces.as_ptr().cast(), pieces.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_stage_of_every_strip_comes_once() {
        for (m, k, groups, count, most) in
            [(1000, 700usize, 4, 1, 132), (64, 6400, 1, 2, 7), (1, 1, 2, 3, 9)]
        {
            let across = k.div_ceil(BIT_TILE);
            let bands = bands(m, across, groups);
            let entries = vec![1; bands.len()];
            let schedule = Schedule::new(&bands, &entries, across, (16, count), most);
            let mut seen = BTreeSet::new();
            let mut slots = BTreeSet::new();
            for piece in &schedule.pieces {
                for s in 0..piece.stages {
                    assert!(seen.insert((piece.row, piece.column, piece.place + s)));
                }
                if piece.parts >> 16 > 1 {
                    assert!(slots.insert(piece.first + (piece.parts & 0xffff)));
                }
            }
            assert_eq!(seen.len(), bands.len() * count * across);
            assert_eq!(slots.len(), schedule.slots as usize);
            assert!(schedule.blocks() as usize <= most);
        }
    }

    /// 16 CTA tiles over 132 thread blocks: 8 each. 112 CTA tiles still use all 132 thread blocks, because one each
    /// would leave 20 without work.
    #[test]
    fn strips_are_cut_evenly_where_that_costs_little() {
        for (m, blocks, pieces) in [(4096, 128, 128), (28672, 132, 240)] {
            let bands = bands(m, 64, 4);
            let entries = vec![1; bands.len()];
            let schedule = Schedule::new(&bands, &entries, 64, (8, 1), 132);
            assert_eq!(schedule.blocks(), blocks);
            assert_eq!(schedule.pieces.len(), pieces);
        }
    }

    #[test]
    fn first_starts_are_those_of_the_first_pieces() {
        let (across, groups) = (50, 2);
        let bands = bands(64 * 7, across, groups);
        let schedule = Schedule::new(&bands, &vec![1; bands.len()], across, (16, 1), 5);
        // Tile t starts at t squared.
        let starts: Vec<u32> = (0..=7 * 50).map(|tile| tile * tile).collect();
        let first = schedule.first_starts(&starts, groups);
        for (block, lines) in first.chunks(BIT_AHEAD * 3).enumerate() {
            let piece = schedule.pieces[schedule.lists[block]];
            for (stage, line) in lines.chunks(3).enumerate() {
                let tile = piece.tile + stage as u32 * piece.step;
                let there = (stage as u32) < piece.stages;
                let wanted = [0, 1, 2].map(|j: u32| (tile + j.min(piece.height)).pow(2));
                assert_eq!(line, if there { wanted } else { [0; 3] });
            }
        }
    }

    #[test]
    fn bands_reach_every_row_of_tiles_once() {
        let all = bands(64 * 7, 3, 2);
        let rows: Vec<(usize, usize)> = all.iter().map(|b| (b.row / 64, b.height)).collect();
        assert_eq!(rows, [(0, 2), (2, 2), (4, 2), (6, 1)]);
        assert_eq!((all[2].tile, all[2].step, all[3].tile), (12, 3, 14));
    }
}
