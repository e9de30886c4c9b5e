//! Builds the work list of the module `attention` from flags of an attention mask. A thread block finds the cover of
//! the pieces of keys for 128 queries, and lists the nonempty ones as tiles. It writes the bits of tiles that have some
//! entries but not all. The last thread block distributes the work. Nothing is sorted or counted by the host.

mod deal;
mod view;

use crate::device::prelude::*;
use crate::families::attention::abi::*;
use view::View;

buffers! {
    // `ops::attention::dynamic` checks the shapes of all flags, lengths and ranges. `MaskLaunch`
    // allocates the lists for the max number of tiles.
    unsafe MaskParams {
        blocks: u8, Fresh;
        columns: u8, Fresh;
        rows: u8, Fresh;
        diagonals: u8, Fresh;
        lengths: u32, Fresh;
        ranges: [u32; 2], Fresh;
        live: u32, Fresh;
        tiles: [u32; 4], ReadWrite;
        masks: [u32; 2], ReadWrite;
        counts: u32, Fresh;
        prefix: u32, Fresh;
        work: [u32; 4], ReadWrite;
        status: u32, Fresh;
    }
}

/// Cover of a piece of keys for 64 queries, two bits of a word of the list. From bit [`STATE`] on, the bits of the
/// first warpgroup's queries precede those of the second.
const SOME: u32 = 1;
const ALL: u32 = 2;
const STATE: u32 = 28;
/// A bit for each 64 queries: the block is flagged.
const BLOCKS: u32 = 26;
/// Index of the piece.
const PIECE: u32 = (1 << 20) - 1;

/// Returns a quotient whose divisor is never 0.
#[inline(always)]
fn over(a: u32, b: u32) -> u32 {
    a.checked_div(b).unwrap_or(0)
}

/// Shared memory at an offset such as [`MASK_DIAGONALS`].
#[inline(always)]
fn area<T>(offset: u32) -> Shared<T> {
    // SAFETY: `MaskTiles::SHARED_BYTES` includes the areas.
    unsafe { Shared::dynamic(offset) }
}

impl View<'_> {
    /// Returns the word of the list for a piece of keys: its cover for both warpgroups.
    #[inline(always)]
    fn state(&self, piece: u32) -> u32 {
        let mut word = piece;
        unroll!(half < 2, {
            let query = self.top + half as u32 * MASK_PIECE;
            let state = match cover(self, query, piece * MASK_PIECE) {
                Cover::Nothing => 0,
                Cover::Some => SOME,
                Cover::All => ALL,
            };
            word |= state << (STATE + 2 * half as u32);
            if state == SOME && self.block(query, piece * MASK_PIECE) {
                word |= 1 << (BLOCKS + half as u32);
            }
        });
        word
    }

    /// Lists the nonempty pieces, two in a tile, and returns the number of tiles. All threads call it.
    #[inline(always)]
    fn list(&self) -> u32 {
        let pieces = self.p.n.div_ceil(MASK_PIECE);
        let thread = gpu::thread();
        let (states, votes) = (area::<u32>(MASK_STATES), area::<[u32; 2]>(MASK_VOTES));
        let listed = area::<u32>(MASK_LIST);
        let mut from = 0;
        while from < pieces {
            let piece = from + thread;
            let word = if piece < pieces { self.state(piece) } else { 0 };
            let seen = [0, 1].map(|half| warp::ballot(word >> (STATE + 2 * half) & 3 != 0));
            if piece < pieces {
                states.at(piece).st(word);
            }
            if thread.is_multiple_of(32) && piece < pieces {
                votes.at(piece / 32).st(seen);
            }
            from += MASK_THREADS;
        }
        gpu::sync_threads();
        let (words, mut counts, mut w) = (pieces.div_ceil(32), [0; MASK_CLASSES], 0);
        while w < words {
            let classes = classes_of(votes.at(w).ld());
            unroll!(c < 3, { counts[c] += classes[c].count_ones() });
            w += 1;
        }
        let (apart, tiles) = (classes_pay(counts), class_tiles(counts));
        let count = if apart {
            tiles[0] + tiles[1] + tiles[2]
        } else {
            (counts[0] + counts[1] + counts[2]).div_ceil(2)
        };
        // Default for the second piece of a tile: an empty one, past the last key.
        let mut i = thread;
        while i < 2 * count {
            listed.at(i).st(pieces);
            i += MASK_THREADS;
        }
        gpu::sync_threads();
        let (mut before, lane) = ([0; MASK_CLASSES], thread % 32);
        w = 0;
        while w < words {
            let classes = classes_of(votes.at(w).ld());
            if w % (MASK_THREADS / 32) == thread / 32 {
                let in_front = (1 << lane) - 1;
                let (mut rank, mut place, mut visible) = (0, 0, false);
                unroll!(c < 3, {
                    let own = before[c] + (classes[c] & in_front).count_ones();
                    rank += own;
                    if classes[c] >> lane & 1 != 0 {
                        visible = true;
                        place = 2 * class_place(tiles, c, own / 2) + own % 2;
                    }
                });
                if visible {
                    let place = if apart { place } else { rank };
                    listed.at(place).st(states.at(w * 32 + lane).ld());
                }
            }
            unroll!(c < 3, { before[c] += classes[c].count_ones() });
            w += 1;
        }
        gpu::sync_threads();
        count
    }

    /// Returns the pieces of a tile.
    #[inline(always)]
    fn listed(&self, tile: u32) -> [u32; 2] {
        area::<[u32; 2]>(MASK_LIST).at(tile).ld()
    }

    /// Writes the tiles. `base`: index of the first.
    #[inline(always)]
    fn write_tiles(&self, base: u32, count: u32) {
        let mut t = gpu::thread();
        while t < count {
            let pair = self.listed(t);
            let [a, b] = pair.map(|word| (word & PIECE) * MASK_PIECE);
            let masks = [0, 1].map(|group| mask_of(pair, group, (base + t) * 2 + group));
            self.p.tiles().at(base + t).st([a, b, masks[0], masks[1]]);
            t += MASK_THREADS;
        }
    }

    /// Writes the bits of tiles with some entries, one warpgroup for each 64 queries.
    #[inline(always)]
    fn write_bits(&self, base: u32, count: u32) {
        let (group, own) = (gpu::thread() / 128, gpu::thread() % 128);
        let query = self.top + group * MASK_PIECE + own / 32 * 16 + own % 32 / 4;
        let ranges = [query, query + 8].map(|query| self.range(query));
        let mut t = 0;
        while t < count {
            let pair = self.listed(t);
            let index = (base + t) * 2 + group;
            if mask_of(pair, group, index) == index {
                let words = [
                    self.word(pair[0], group, query, ranges),
                    self.word(pair[1], group, query, ranges),
                ];
                self.p.masks().row(index, ATTENTION_MASK as u64).at(own).st(words);
            }
            t += 1;
        }
    }

    /// Returns the bits of this thread's accumulators for a piece.
    #[inline(always)]
    fn word(&self, word: u32, group: u32, query: u32, ranges: [[u32; 2]; 2]) -> u32 {
        match word >> (STATE + 2 * group) & 3 {
            0 => 0,
            SOME => {
                let block = word >> (BLOCKS + group) & 1 != 0;
                let key = (word & PIECE) * MASK_PIECE;
                let upper = row_bits(self, query, ranges[0], key, block);
                let lower = row_bits(self, query + 8, ranges[1], key, block);
                mask_word(upper, lower, gpu::thread() % 4)
            }
            _ => u32::MAX,
        }
    }
}

/// Returns the [`KeyTile::masks`] of a warpgroup; `index` if it needs its own bits.
#[inline(always)]
fn mask_of(pair: [u32; 2], group: u32, index: u32) -> u32 {
    let [a, b] = pair.map(|word| word >> (STATE + 2 * group) & 3);
    match (a, b) {
        (0, 0) => MASK_NONE,
        (ALL, ALL) => MASK_ALL,
        _ => index,
    }
}

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, MaskParams> for MaskTiles {
    #[inline(always)]
    unsafe fn run(p: &MaskParams, _: Maps) {
        grid::launch_dependents();
        if p.flags & MASK_BESIDE == 0 {
            grid::wait_dependency();
        }
        let own = gpu::block_x();
        let mask = over(own, p.strips);
        let strip = own - mask * p.strips;
        let live = p.live().ld_if(p.live != 0);
        let live = if p.live != 0 { live.min(p.m) } else { p.m };
        // All masks have the same groups of 128 queries (strips). Those past the last query are at the end of each
        // mask.
        let strips = live.div_ceil(STRIP as u32);
        if strip < strips {
            let view = View::new(p, mask, strip);
            gpu::sync_threads();
            let tiles = view.list();
            view.write_tiles(own * p.capacity, tiles);
            view.write_bits(own * p.capacity, tiles);
            if gpu::thread() == 0 {
                p.counts().at(own).st(tiles);
            }
        }
        Self::deal_last(p, strips);
        if p.flags & MASK_BESIDE != 0 {
            // A kernel that waits for this one thereby also waits for the previous one.
            grid::wait_dependency();
        }
    }
}
