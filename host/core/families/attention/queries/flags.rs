//! Masks given by flags of blocks, columns, rows and diagonals instead of entries. Their tiles are computed piece by
//! piece, independent of the number of entries. The kernels of device module `masks` use the same functions.

use einsparse_kernels::abi::{HALF, STRIP};
use einsparse_kernels::families::{
    ATTENTION_PIECE, Cover, KeyTile, MASK_ALL, MASK_NONE, MASK_PIECE, MaskFlags, cover, mask_word,
    row_bits,
};
use rayon::prelude::*;

use super::{Tiles, WORDS, paired};
use crate::error::Result;

/// Flags, 64 per word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// Sets the flags of the indices in `set`; ignores indices from `count` on.
    pub(crate) fn of(count: usize, set: impl IntoIterator<Item = usize>) -> Bits {
        let mut words = vec![0; count.div_ceil(64)];
        for i in set.into_iter().filter(|&i| i < count) {
            words[i / 64] |= 1 << (i % 64);
        }
        Bits(words)
    }

    /// Returns 64 flags from `first` on; flags outside are 0.
    fn from(&self, first: i64) -> u64 {
        let word = |i: i64| usize::try_from(i).ok().and_then(|i| self.0.get(i));
        let (at, by) = (first.div_euclid(64), first.rem_euclid(64));
        let [low, high] = [at, at + 1].map(|i| word(i).copied().unwrap_or(0));
        low >> by | if by > 0 { high << (64 - by) } else { 0 }
    }
}

/// Mask given by flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Number of queries and keys.
    pub shape: [usize; 2],
    /// Whether all entries exist.
    pub full: bool,
    /// Flags of blocks of 64 x 64, row by row; empty for none.
    pub blocks: Vec<bool>,
    pub columns: Bits,
    pub rows: Bits,
    /// Flag of diagonal `key - query + m - 1`.
    pub diagonals: Bits,
    /// First key and end of the keys of each query, neither decreasing; empty for no ranges.
    pub ranges: Vec<[u32; 2]>,
    /// Keys above query + this offset are hidden.
    pub causal: Option<i64>,
    /// Keys from this index on are hidden.
    pub length: usize,
}

/// Returns the offset as kernels read it. It is clamped, because an offset further away hides everything or nothing.
pub fn causal_offset(offset: Option<i64>) -> i32 {
    let most = i64::from(i32::MAX / 2);
    offset.map_or(i32::MAX, |offset| offset.clamp(-most, most) as i32)
}

impl MaskFlags for Flags {
    fn block(&self, query: u32, key: u32) -> bool {
        let across = self.shape[1].div_ceil(MASK_PIECE as usize);
        let index = (query / MASK_PIECE) as usize * across + (key / MASK_PIECE) as usize;
        self.blocks.get(index).copied().unwrap_or(false)
    }

    fn columns(&self, key: u32) -> u64 {
        self.columns.from(i64::from(key))
    }

    fn rows(&self, query: u32) -> u64 {
        match self.full {
            true => u64::MAX,
            false => self.rows.from(i64::from(query)),
        }
    }

    fn diagonals(&self, first: i32) -> u64 {
        self.diagonals.from(i64::from(first))
    }

    fn range(&self, query: u32) -> [u32; 2] {
        let length = self.length.min(self.shape[1]) as u32;
        let range = self.ranges.get(query as usize);
        range.map_or([0, length], |&[first, end]| [first, end.min(length)])
    }

    fn m(&self) -> u32 {
        self.shape[0] as u32
    }

    fn causal(&self) -> i32 {
        causal_offset(self.causal)
    }
}

impl Flags {
    pub(crate) fn keys(&self, query: usize) -> Vec<usize> {
        let mut keys = Vec::new();
        for first in (0..self.shape[1]).step_by(ATTENTION_PIECE) {
            let (query, first) = (query as u32, first as u32);
            let block = self.block(query / MASK_PIECE * MASK_PIECE, first);
            let bits = row_bits(self, query, self.range(query), first, block);
            keys.extend((0..64).filter(|i| bits >> i & 1 != 0).map(|i| first as usize + i));
        }
        keys
    }

    /// Returns the tiles of the group of queries that begins at `top`; masks are numbered from 0.
    fn strip(&self, top: usize) -> (Vec<KeyTile>, Vec<u32>) {
        let halves = [top as u32, (top + HALF) as u32];
        let pieces: Vec<(u32, [Cover; 2])> = (0..self.shape[1] as u32)
            .step_by(ATTENTION_PIECE)
            .map(|key| (key, halves.map(|query| cover(self, query, key))))
            .filter(|(_, covers)| *covers != [Cover::Nothing; 2])
            .collect();
        let end = self.shape[1].next_multiple_of(ATTENTION_PIECE) as u32;
        let seen = |covers: [Cover; 2]| covers.map(|cover| cover != Cover::Nothing);
        let numbers = pieces.iter().enumerate();
        let pairs = paired(&numbers.map(|(i, p)| (i, seen(p.1))).collect::<Vec<_>>());
        let mut masks = Vec::new();
        let tiles = pairs.into_iter().map(|pair| {
            let pair = pair.map(|i| i.map_or((end, [Cover::Nothing; 2]), |i| pieces[i]));
            let own = [0, 1].map(|half| match pair.map(|(_, covers)| covers[half]) {
                [Cover::Nothing, Cover::Nothing] => MASK_NONE,
                [Cover::All, Cover::All] => MASK_ALL,
                covers => {
                    let pieces = [0, 1].map(|i| (pair[i].0, covers[i]));
                    masks.extend(self.words(halves[half], pieces));
                    (masks.len() / WORDS - 1) as u32
                }
            });
            KeyTile { keys: pair.map(|(key, _)| key), masks: own }
        });
        let tiles = tiles.collect();
        (tiles, masks)
    }

    /// Returns the mask of 64 queries and two pieces of keys.
    fn words(&self, top: u32, pieces: [(u32, Cover); 2]) -> Vec<u32> {
        let mut words = vec![0; WORDS];
        for (thread, pair) in words.chunks_mut(2).enumerate() {
            let lane = thread as u32 % 32;
            let query = top + thread as u32 / 32 * 16 + lane / 4;
            for (word, &(key, cover)) in pair.iter_mut().zip(&pieces) {
                let bits = |query: u32| match cover {
                    Cover::Nothing => 0,
                    Cover::All => u64::MAX,
                    Cover::Some => {
                        row_bits(self, query, self.range(query), key, self.block(top, key))
                    }
                };
                *word = mask_word(bits(query), bits(query + 8), lane % 4);
            }
        }
        words
    }

    pub(crate) fn tiles(&self) -> Result<Tiles> {
        let strips: Vec<_> = (0..self.shape[0].div_ceil(STRIP))
            .into_par_iter()
            .map(|s| self.strip(s * STRIP))
            .collect();
        Tiles::joined(&strips)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::entries;
    use super::*;
    use std::collections::BTreeSet;

    /// Tests that the tiles hold exactly the entries that the flags define.
    #[test]
    fn flags_give_their_entries() {
        let shapes = [(1, 1), (130, 200), (200, 130), (64, 448), (257, 129)];
        for (i, shape) in shapes.into_iter().enumerate() {
            for (causal, length) in [(None, 9999), (Some(3), 9999), (Some(-70), 150), (None, 0)] {
                for kind in 0..32 {
                    let flags = sample([shape.0, shape.1], kind, i, (causal, length));
                    let there = |q: usize, k: usize| naive(&flags, q, k);
                    let wanted: BTreeSet<_> = (0..shape.0)
                        .flat_map(|q| (0..shape.1).map(move |k| (q, k)))
                        .filter(|&(q, k)| there(q, k))
                        .collect();
                    let tiles = flags.tiles().unwrap();
                    assert_eq!(entries(&tiles, shape.1, shape.0), wanted, "{shape:?} {kind}");
                    for q in 0..shape.0 {
                        let keys = (0..shape.1).filter(|&k| there(q, k));
                        assert_eq!(flags.keys(q), keys.collect::<Vec<_>>());
                    }
                }
            }
        }
    }

    /// Creates flags. Bit 0 of `kind` enables blocks, bit 1 columns, bit 2 rows, bit 3 diagonals, bit 4 ranges.
    fn sample(
        [m, n]: [usize; 2],
        kind: usize,
        seed: usize,
        (causal, length): (Option<i64>, usize),
    ) -> Flags {
        let has = |bit: usize| kind >> bit & 1 != 0;
        let some = move |i: usize, of: usize| (i * 31 + seed * 7) % of == 0;
        let every = |count: usize, on: bool, of: usize| {
            Bits::of(count, (0..count).filter(move |&i| on && some(i, of)))
        };
        let blocks = m.div_ceil(64) * n.div_ceil(64);
        let band = (m + n - 1).saturating_sub(200)..m + n - 1;
        let diagonals = (0..m + n - 1).filter(|&i| has(3) && (some(i, 41) || band.contains(&i)));
        let range = |q: usize| [q as u32 / 100 * 50, (q as u32 / 100 * 50 + 120).min(n as u32)];
        Flags {
            shape: [m, n],
            full: false,
            blocks: (0..blocks).map(|i| has(0) && some(i, 3)).collect(),
            columns: every(n, has(1), 13),
            rows: every(m, has(2), 17),
            diagonals: Bits::of(m + n - 1, diagonals),
            ranges: if has(4) { (0..m).map(range).collect() } else { Vec::new() },
            causal,
            length,
        }
    }

    fn naive(flags: &Flags, q: usize, k: usize) -> bool {
        let [m, n] = flags.shape;
        let bit =
            |bits: &Bits, i: usize| bits.0.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 != 0);
        let there = flags.blocks[q / 64 * n.div_ceil(64) + k / 64]
            || bit(&flags.columns, k)
            || bit(&flags.rows, q)
            || bit(&flags.diagonals, k + m - 1 - q);
        let range = flags.ranges.get(q).copied().unwrap_or([0, n as u32]);
        there
            && (range[0] as usize..range[1] as usize).contains(&k)
            && k < flags.length
            && flags.causal.is_none_or(|offset| k as i64 <= q as i64 + offset)
    }
}
