//! Iterator over the kernel offsets at which a tile has neighbours.

use crate::device::prelude::*;
use crate::families::gather_gemm::abi::{CONV_ABSENT, ConvParams};

/// Iterator over the bits of a tile's masks.
pub struct Offsets {
    /// The tile's two masks, one for each half (64 positions).
    masks: Global<u32, ReadOnly>,
    /// Words of a mask.
    words: u32,
    /// Number of words read.
    taken: u32,
    /// Remaining bits of the last words read, and all of their bits for each half of the tile.
    left: u32,
    lower: u32,
    upper: u32,
}

impl Offsets {
    #[inline(always)]
    pub fn of(p: &ConvParams, tile: u32) -> Self {
        Offsets {
            masks: p.masks().at(tile as u64 * 2 * p.words as u64),
            words: p.words,
            taken: 0,
            left: 0,
            lower: 0,
            upper: 0,
        }
    }

    /// Returns the next offset, [`CONV_ABSENT`] (all bits set) after the last, and a bit for each half of the tile with
    /// neighbours there. `UNIFORM`: ptxas treats the result as warp-uniform, so that `wgmma` may depend on it.
    #[inline(always)]
    pub fn next<const UNIFORM: bool>(&mut self) -> (u32, u32) {
        while self.left == 0 {
            if self.taken == self.words {
                return (CONV_ABSENT, 0);
            }
            let word = |at: Global<u32, ReadOnly>| {
                let bits = at.ld();
                if UNIFORM { warp::uniform(bits) } else { bits }
            };
            let at = self.masks.at(self.taken);
            (self.lower, self.upper) = (word(at), word(at.at(self.words)));
            self.left = self.lower | self.upper;
            self.taken += 1;
        }
        let bit = self.left.trailing_zeros();
        self.left &= self.left - 1;
        let halves = (self.lower >> bit & 1) | (self.upper >> bit & 1) << 1;
        ((self.taken - 1) * 32 + bit, halves)
    }
}
