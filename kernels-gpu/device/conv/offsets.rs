//! The offsets that a tile, or both of a cluster, have neighbours at, one after the other.

use crate::abi::{CONV_ABSENT, CONV_HALF, ConvParams};
use crate::device::ptx::{global, warp};

/// A walk over the bits of the masks of a tile, and of the one beside it where a cluster walks both (`TEAM` 2).
pub struct Offsets<const TEAM: usize> {
    /// Next words of this tile's masks.
    at: u64,
    words: u32,
    /// Words taken.
    taken: u32,
    /// Bits left of the words taken last, and all of them for either half of this tile.
    left: u32,
    halves: [u32; 2],
    /// Which of the masks from here on there are.
    there: [bool; 2],
}

impl<const TEAM: usize> Offsets<TEAM> {
    #[inline(always)]
    pub fn of(p: &ConvParams, tile: u32) -> Self {
        let tiles = p.stride / (2 * CONV_HALF as u32);
        Offsets {
            at: p.masks + tile as u64 * 2 * p.words as u64 * 4,
            words: p.words,
            taken: 0,
            left: 0,
            halves: [0, 0],
            // Of two tiles the second may be missing.
            there: [TEAM == 1 || tile < tiles, tile % 2 == 1 || tile + 1 < tiles],
        }
    }

    /// The next offset, [`CONV_ABSENT`] behind the last, and which halves of this tile have neighbours there. `UNIFORM`:
    /// ptxas is told that all lanes see the same.
    #[inline(always)]
    pub fn next<const UNIFORM: bool>(&mut self, tile: u32) -> (u32, u32) {
        while self.left == 0 {
            if self.taken == self.words {
                return (CONV_ABSENT, 0);
            }
            let line = self.words as u64 * 4;
            let word = |at: u64, there: bool| {
                let bits = global::load_b32(at, there);
                if UNIFORM {
                    warp::shuffle::<32>(bits, 0, u32::MAX)
                } else {
                    bits
                }
            };
            let at = self.at + self.taken as u64 * 4;
            self.halves = [word(at, self.there[0]), word(at + line, self.there[0])];
            self.left = self.halves[0] | self.halves[1];
            if TEAM == 2 {
                let beside = if tile % 2 == 0 {
                    at + 2 * line
                } else {
                    at - 2 * line
                };
                self.left |= word(beside, self.there[1]) | word(beside + line, self.there[1]);
            }
            self.taken += 1;
        }
        let bit = self.left.trailing_zeros();
        self.left &= self.left - 1;
        let halves = (self.halves[0] >> bit & 1) | (self.halves[1] >> bit & 1) << 1;
        ((self.taken - 1) * 32 + bit, halves)
    }
}
