//! Which columns of a section of A hold something: a bit each, then a list in ascending order, the same in every run.

use crate::abi::*;
use crate::device::gpu;
use crate::device::ptx::{copy, global, warp};

/// Columns that a warp looks at together: 16 bytes of each lane.
const ACROSS: u32 = 256;
/// Words of bits, three of each lane.
const WORDS: u32 = FEW_SECTION / 32;
const _: () = assert!(WORDS == 96 && FEW_SECTION.is_multiple_of(ACROSS));

impl<const MT: usize, const WARPS: usize> FewRows<MT, WARPS> {
    /// Rows that a warp looks at together: beside the sums of 64 rows there are registers for four.
    const TOGETHER: usize = if MT == 64 { 4 } else { 8 };

    /// Shared address of the bits.
    #[inline(always)]
    fn bits() -> u32 {
        copy::arena() + Self::BITS as u32
    }

    /// Clears the bits.
    #[inline(always)]
    pub(super) fn clear() {
        if gpu::thread() < WORDS {
            copy::store_shared_b32(Self::bits() + gpu::thread() * 4, 0);
        }
    }

    /// 16 bytes of a row from column `column` on; zeros where there is no row.
    #[inline(always)]
    fn vector(p: &PitFewParams, row: u32, column: u32) -> [u32; 4] {
        let at = p.a + row as u64 * p.lda_bytes as u64 + column as u64 * 2;
        if p.flags & FEW_VECTORS != 0 {
            return global::load_v4_fresh(at, row < p.m && column < p.k);
        }
        let mut words = [0; 4];
        unroll!(w < 4, {
            unroll!(h < 2, {
                let i = (2 * w + h) as u32;
                let inside = row < p.m && column + i < p.k;
                let half = global::load_b16_fresh(at + i as u64 * 2, inside);
                words[w] |= half << (16 * h);
            });
        });
        words
    }

    /// Sets the bits of the columns of a section in which an element is above the threshold. A warp takes 256 columns of some
    /// rows at a time, each of whose loads is on the way before the first is looked at.
    #[inline(always)]
    pub(super) fn scan(p: &PitFewParams, from: u32, width: u32) {
        let (own, lane) = (gpu::thread() / 32, gpu::thread() % 32);
        let mut unit = own;
        loop {
            let (group, piece) = (unit / (FEW_SECTION / ACROSS), unit % (FEW_SECTION / ACROSS));
            if group * Self::TOGETHER as u32 >= p.m {
                break;
            }
            unit += WARPS as u32;
            let at = piece * ACROSS + lane * 8;
            if at >= width {
                continue;
            }
            let mut raw = [[0; 4]; 8];
            unroll!(i < Self::TOGETHER, {
                let row = group * Self::TOGETHER as u32 + i as u32;
                raw[i] = Self::vector(p, row, from + at);
            });
            let mut found = 0;
            unroll!(w < 4, {
                let mut marks = 0;
                unroll!(i < Self::TOGETHER, {
                    marks |= ((raw[i][w] & 0x7fff_7fff) + p.above) & 0x8000_8000;
                });
                found |= (marks >> 15 & 1 | marks >> 30 & 2) << (2 * w);
            });
            // What lies behind the section's last column is another's, or nobody's.
            let left = (width - at).min(8);
            found &= (1 << left) - 1;
            if found != 0 {
                let bit = at % 32;
                copy::set_bits_shared(Self::bits() + at / 32 * 4, found << bit);
            }
        }
    }

    /// Lists the columns whose bits are set and says how many they are. Each warp counts for itself; six write, a half of the
    /// lanes' words each.
    #[inline(always)]
    pub(super) fn list() -> u32 {
        let (own, lane) = (gpu::thread() / 32, gpu::thread() % 32);
        let words = [0, 1, 2].map(|i| copy::load_shared_b32(Self::bits() + (lane * 3 + i) * 4));
        let ones = words.map(u32::count_ones);
        let mine = ones[0] + ones[1] + ones[2];
        let mut inclusive = mine;
        unroll!(step < 5, {
            let below = warp::shuffle_up(inclusive, 1 << step);
            inclusive += if lane >= 1 << step { below } else { 0 };
        });
        let count = warp::shuffle::<32>(inclusive, 31, u32::MAX);
        let (word, before) = match own / 2 {
            0 => (words[0], 0),
            1 => (words[1], ones[0]),
            2 => (words[2], ones[0] + ones[1]),
            _ => (0, 0),
        };
        let half = own % 2 * 16;
        let first = inclusive - mine + before + (word & ((1 << half) - 1)).count_ones();
        let mut to = copy::arena() + Self::LIST as u32 + first * 2;
        let mut bits = word >> half & 0xffff;
        let column = (lane * 3 + own / 2) * 32 + half;
        while bits != 0 {
            copy::store_shared_b16(to, column + bits.trailing_zeros());
            bits &= bits - 1;
            to += 2;
        }
        count
    }
}
