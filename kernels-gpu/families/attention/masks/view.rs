//! Flags of a mask for 128 queries: bits of keys and diagonals in shared memory, bits of these queries in registers.

use crate::device::prelude::*;
use crate::families::attention::abi::*;

/// Flags of a mask, or null.
type Flags = Global<u8, Fresh>;

/// Flags of 128 queries of a mask.
pub(super) struct View<'a> {
    pub p: &'a MaskParams,
    pub top: u32,
    /// Flags of blocks of the mask.
    blocks: Flags,
    length: u32,
    /// Number of the first diagonal in shared memory: a multiple of 16, possibly negative.
    first: i32,
    /// Flags of the first 64 queries, and of the others.
    upper: u64,
    lower: u64,
    /// Ranges of keys: of the first and the last of the first 64 queries, then of the others.
    edges: [[u32; 2]; 4],
}

/// Returns a bit for each of 16 bytes: set if the byte is not zero.
#[inline(always)]
fn bits_of(words: [u32; 4]) -> u32 {
    let mut bits = 0;
    unroll!(w < 4, {
        let word = words[w];
        let marks = (((word & 0x7f7f_7f7f) + 0x7f7f_7f7f) | word) & 0x8080_8080;
        bits |= ((marks >> 7).wrapping_mul(0x0020_4081) >> 21 & 0xf) << (4 * w);
    });
    bits
}

/// Returns whether 16 flags from `from` on are inside and aligned, so that one access loads them.
#[inline(always)]
fn whole(flags: Flags, from: i32, count: i32) -> bool {
    !flags.is_null() && flags.address().is_multiple_of(16) && from >= 0 && from + 16 <= count
}

/// Returns the bits of 16 flags from `from` on, a multiple of 16; those outside `0..count` are 0.
#[inline(always)]
fn sixteen(flags: Flags, from: i32, count: i32) -> u32 {
    let at = flags.wrapping_at(from as i64 as u64);
    if whole(flags, from, count) {
        return bits_of(at.cast::<[u32; 4]>().ld());
    }
    if flags.is_null() || from >= count || from + 16 <= 0 {
        return 0;
    }
    let (mut bits, mut i) = (0, 0);
    while i < 16 {
        warp::nounroll();
        let inside = from + i >= 0 && from + i < count;
        let flag = at.wrapping_at(i as u64).ld_if(inside);
        bits |= u32::from(flag != 0) << i;
        i += 1;
    }
    bits
}

/// Stores `words` words of flag bits from `from` on to shared memory. A thread has four accesses in flight at once.
#[inline(always)]
fn fill(to: u32, flags: Flags, from: i32, count: i32, words: u32) {
    let mut first = gpu::thread();
    while first < 2 * words {
        let mut raw = [[0; 4]; 4];
        unroll!(u < 4, {
            let from = from + 16 * (first + u as u32 * MASK_THREADS) as i32;
            let at = flags.wrapping_at(from as i64 as u64);
            raw[u] = at.cast::<[u32; 4]>().ld_if(whole(flags, from, count));
        });
        unroll!(u < 4, {
            let i = first + u as u32 * MASK_THREADS;
            let from = from + 16 * i as i32;
            let bits = if whole(flags, from, count) {
                bits_of(raw[u])
            } else {
                sixteen(flags, from, count)
            };
            if i < 2 * words {
                copy::st_shared_b16(to + i * 2, bits);
            }
        });
        first += 4 * MASK_THREADS;
    }
}

/// Returns the flags of a mask.
#[inline(always)]
fn flags_of(flags: Flags, mask: u32, bytes: u64) -> Flags {
    if flags.is_null() { flags } else { flags.row(mask, bytes) }
}

/// Returns the first key of a query and one past the last, for a mask of `length` keys.
#[inline(always)]
fn range(p: &MaskParams, length: u32, query: u32) -> [u32; 2] {
    let [first, end] = p.ranges().at(query).ld_if(p.ranges != 0 && query < p.m);
    if p.ranges == 0 { [0, length] } else { [first, end.min(length)] }
}

impl MaskFlags for View<'_> {
    #[inline(always)]
    fn block(&self, query: u32, key: u32) -> bool {
        let row = self.blocks.row(query / MASK_PIECE, self.p.block_row);
        row.at(key / MASK_PIECE).ld_if(!self.blocks.is_null()) != 0
    }

    #[inline(always)]
    fn columns(&self, key: u32) -> u64 {
        let [low, high] = copy::ld_shared_v2(copy::dynamic_shared() + key / 8);
        low as u64 | (high as u64) << 32
    }

    #[inline(always)]
    fn rows(&self, query: u32) -> u64 {
        let (upper, lower) = (self.upper, self.lower);
        // Selected by arithmetic: a conditional would select one of two addresses, in local memory.
        let first = u64::from(query == self.top).wrapping_neg();
        upper & first | lower & !first
    }

    #[inline(always)]
    fn diagonals(&self, first: i32) -> u64 {
        let at = (first - self.first) as u32;
        let from = copy::dynamic_shared() + MASK_DIAGONALS + at / 32 * 4;
        let [a, b, c] = [0, 4, 8].map(|i| copy::ld_shared_b32(from + i));
        let (low, by) = (a as u64 | (b as u64) << 32, at % 32);
        if by == 0 { low } else { low >> by | (c as u64) << (64 - by) }
    }

    #[inline(always)]
    fn range(&self, query: u32) -> [u32; 2] {
        range(self.p, self.length, query)
    }

    #[inline(always)]
    fn edges(&self, query: u32, _: u32) -> [[u32; 2]; 2] {
        // Selected by arithmetic, as in [`Self::rows`].
        let first = u32::from(query == self.top).wrapping_neg();
        let [a, b, c, d] = self.edges;
        let of =
            |x: [u32; 2], y: [u32; 2]| [x[0] & first | y[0] & !first, x[1] & first | y[1] & !first];
        [of(a, c), of(b, d)]
    }

    #[inline(always)]
    fn m(&self) -> u32 {
        self.p.m
    }

    #[inline(always)]
    fn causal(&self) -> i32 {
        self.p.causal
    }
}

impl<'a> View<'a> {
    /// Stores the mask's flags as bits to shared memory. The thread block must synchronize before they are read.
    #[inline(always)]
    pub(super) fn new(p: &'a MaskParams, mask: u32, strip: u32) -> Self {
        let top = strip * STRIP as u32;
        let columns = flags_of(p.columns(), mask, p.mask_bytes[1]);
        fill(copy::dynamic_shared(), columns, 0, p.n as i32, p.n.div_ceil(64) * 2);
        // From the last query's diagonal of the first key to the first query's diagonal of the last key.
        let first = (p.m as i32 - top as i32 - STRIP as i32) & !15;
        let diagonals = flags_of(p.diagonals(), mask, p.mask_bytes[3]);
        let to = copy::dynamic_shared() + MASK_DIAGONALS;
        let count = (p.m + p.n - 1) as i32;
        fill(to, diagonals, first, count, (p.n + 480).div_ceil(32));
        let rows = flags_of(p.rows(), mask, p.mask_bytes[2]);
        let full = p.flags & MASK_FULL != 0;
        let own = |from: u32| {
            let (mut bits, mut quarter) = (0, 0);
            while quarter < 64 {
                let own = sixteen(rows, (from + quarter) as i32, p.m as i32);
                bits |= (own as u64) << quarter;
                quarter += 16;
            }
            if full { u64::MAX } else { bits }
        };
        let given = p.lengths().at(mask).ld_if(p.lengths != 0) as i32;
        let length = if p.lengths == 0 { p.n } else { (given.max(0) as u32).min(p.n) };
        // Loaded here, all at once: in the loop over pieces of keys the loads would wait for each other.
        let edge = |i: u32| range(p, length, (top + i).min(p.m - 1));
        let (last, next) = (MASK_PIECE - 1, MASK_PIECE);
        let edges = [edge(0), edge(last), edge(next), edge(next + last)];
        View {
            p,
            top,
            blocks: flags_of(p.blocks(), mask, p.mask_bytes[0]),
            length,
            first,
            upper: own(top),
            lower: own(top + MASK_PIECE),
            edges,
        }
    }
}
