//! The offsets that a tile has neighbours at, and the tiles that have some at an offset, one after the other.

use crate::abi::{CONV_ABSENT, CONV_HALF, ConvParams, ConvWordsParams};
use crate::device::gpu;
use crate::device::ptx::{global, warp};

/// A walk over the bits of a tile's two masks.
pub struct Offsets {
    /// Next words of the masks.
    at: u64,
    words: u32,
    /// Words taken.
    taken: u32,
    /// Bits left of the words taken last, those of either half.
    bits: [u32; 2],
}

impl Offsets {
    #[inline(always)]
    pub fn of(p: &ConvParams, tile: u32) -> Offsets {
        Offsets {
            at: p.masks + tile as u64 * 2 * p.words as u64 * 4,
            words: p.words,
            taken: 0,
            bits: [0, 0],
        }
    }

    /// The next offset, [`CONV_ABSENT`] behind the last, and which halves have neighbours there. `UNIFORM`: ptxas is told
    /// that all lanes see the same.
    #[inline(always)]
    pub fn next<const UNIFORM: bool>(&mut self) -> (u32, u32) {
        while self.bits[0] | self.bits[1] == 0 {
            if self.taken == self.words {
                return (CONV_ABSENT, 0);
            }
            let word = |half: u32| {
                let at = self.at + (half * self.words) as u64 * 4;
                let bits = global::load_b32(at, true);
                if UNIFORM {
                    warp::shuffle::<32>(bits, 0, u32::MAX)
                } else {
                    bits
                }
            };
            self.bits = [word(0), word(1)];
            self.at += 4;
            self.taken += 1;
        }
        let bit = (self.bits[0] | self.bits[1]).trailing_zeros();
        let halves = (self.bits[0] >> bit & 1) | (self.bits[1] >> bit & 1) << 1;
        self.bits = self.bits.map(|b| b & !(1 << bit));
        ((self.taken - 1) * 32 + bit, halves)
    }
}

/// The 64 positions of an offset that a part has, one after the other: 32 masks at a time, one a lane.
pub struct Halves {
    masks: u64,
    words: u32,
    halves: u32,
    parts: u32,
    bit: u32,
    /// First of the 32 looked at last, and those of them that are there.
    first: u32,
    there: u32,
    next: u32,
}

impl Halves {
    #[inline(always)]
    pub fn of(p: &ConvWordsParams, offset: u32, part: u32) -> Halves {
        Halves {
            masks: p.base.masks + (offset / 32) as u64 * 4,
            words: p.base.words,
            halves: p.base.stride / CONV_HALF as u32,
            parts: p.parts,
            bit: offset % 32,
            first: part,
            there: 0,
            next: part,
        }
    }

    /// The next, or [`CONV_ABSENT`]. All lanes of a warp together.
    #[inline(always)]
    pub fn next(&mut self) -> u32 {
        while self.there == 0 {
            if self.next >= self.halves {
                return CONV_ABSENT;
            }
            let lane = gpu::thread_again() % 32;
            let own = self.next + lane * self.parts;
            let at = self.masks + own as u64 * self.words as u64 * 4;
            let mask = global::load_b32(at, own < self.halves);
            self.there = warp::ballot(mask >> self.bit & 1 != 0);
            self.first = self.next;
            self.next += 32 * self.parts;
        }
        let lane = self.there.trailing_zeros();
        self.there &= self.there - 1;
        self.first + lane * self.parts
    }
}
