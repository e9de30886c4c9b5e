//! From flags of an attention mask to the work list of the `attention` family: a thread block finds what the pieces of keys hold for
//! 128 queries, lists those that hold something as tiles, and writes the bits of those that hold some entries but not all. The
//! thread block that is done last deals the work. Nothing is sorted or counted by the host.

mod deal;

use super::gpu;
use super::ptx::{copy, global, grid, warp};
use crate::abi::*;

/// The body, generic over the element; the tile is the implementor.
pub trait Body: Tile {
    /// # Safety
    /// `p` describes live device memory and the launch has this tile's geometry.
    unsafe fn run<W: WalkInfo, E: ElemInfo>(p: &MaskParams, at: u64);
}

/// What a piece of keys is to a half of the queries, two bits in a word of the list: from [`STATE`] on, the second half's behind
/// the first's.
const SOME: u32 = 1;
const ALL: u32 = 2;
const STATE: u32 = 28;
/// A bit for each half: the block is there.
const BLOCKS: u32 = 26;
/// The number of the piece.
const PIECE: u32 = (1 << 20) - 1;

/// A quotient of a divisor that is never 0.
#[inline(always)]
fn over(a: u32, b: u32) -> u32 {
    a.checked_div(b).unwrap_or(0)
}

/// 128 queries of a mask.
struct View<'a> {
    p: &'a MaskParams,
    /// First query.
    top: u32,
    /// Flags of blocks of the mask.
    blocks: u64,
    /// Keys of the mask.
    length: u32,
    /// Number of the first diagonal in shared memory, a multiple of 16, perhaps below 0.
    first: i32,
    /// Flags of the first 64 queries, and of the others.
    upper: u64,
    lower: u64,
    /// Ranges of keys: of the first of 64 queries and the last, then of the others.
    edges: [[u32; 2]; 4],
}

/// A bit for each of 16 bytes.
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

/// Do 16 flags from `from` on lie inside, so that one access brings them?
#[inline(always)]
fn whole(flags: u64, from: i32, count: i32) -> bool {
    flags != 0 && flags.is_multiple_of(16) && from >= 0 && from + 16 <= count
}

/// Bits of 16 flags from `from` on, a multiple of 16; those outside `0..count` are 0.
#[inline(always)]
fn sixteen(flags: u64, from: i32, count: i32) -> u32 {
    let at = flags.wrapping_add(from as i64 as u64);
    if whole(flags, from, count) {
        return bits_of(global::load_v4_fresh(at, true));
    }
    if flags == 0 || from >= count || from + 16 <= 0 {
        return 0;
    }
    let (mut bits, mut i) = (0, 0);
    while i < 16 {
        warp::stay_rolled();
        let inside = from + i >= 0 && from + i < count;
        let flag = global::load_b8_fresh(at.wrapping_add(i as u64), inside);
        bits |= u32::from(flag != 0) << i;
        i += 1;
    }
    bits
}

/// Bits of flags from `from` on to shared memory, `words` of them; four accesses of a thread are under way at once.
#[inline(always)]
fn fill(to: u32, flags: u64, from: i32, count: i32, words: u32) {
    let mut first = gpu::thread();
    while first < 2 * words {
        let mut raw = [[0; 4]; 4];
        unroll!(u < 4, {
            let from = from + 16 * (first + u as u32 * DETECT_THREADS) as i32;
            let at = flags.wrapping_add(from as i64 as u64);
            raw[u] = global::load_v4_fresh(at, whole(flags, from, count));
        });
        unroll!(u < 4, {
            let i = first + u as u32 * DETECT_THREADS;
            let from = from + 16 * i as i32;
            let bits = if whole(flags, from, count) {
                bits_of(raw[u])
            } else {
                sixteen(flags, from, count)
            };
            if i < 2 * words {
                copy::store_shared_b16(to + i * 2, bits);
            }
        });
        first += 4 * DETECT_THREADS;
    }
}

/// The address of a mask's flags; 0 for none.
#[inline(always)]
fn flags_of(flags: u64, mask: u32, bytes: u64) -> u64 {
    if flags == 0 {
        0
    } else {
        flags + mask as u64 * bytes
    }
}

/// First key of a query and the one behind the last, of a mask of `length` keys.
#[inline(always)]
fn range(p: &MaskParams, length: u32, query: u32) -> [u32; 2] {
    let at = p.ranges + query as u64 * 8;
    let [first, end] = global::load_v2_fresh(at, p.ranges != 0 && query < p.m);
    if p.ranges == 0 {
        [0, length]
    } else {
        [first, end.min(length)]
    }
}

impl MaskFlags for View<'_> {
    #[inline(always)]
    fn block(&self, query: u32, key: u32) -> bool {
        let row = (query / MASK_PIECE) as u64 * self.p.block_row;
        let at = self.blocks + row + (key / MASK_PIECE) as u64;
        global::load_b8_fresh(at, self.blocks != 0) != 0
    }

    #[inline(always)]
    fn columns(&self, key: u32) -> u64 {
        let [low, high] = copy::load_shared_v2(copy::arena() + key / 8);
        low as u64 | (high as u64) << 32
    }

    #[inline(always)]
    fn rows(&self, query: u32) -> u64 {
        let (upper, lower) = (self.upper, self.lower);
        // By arithmetic: a choice of the two would be one of their addresses, in local memory.
        let first = u64::from(query == self.top).wrapping_neg();
        upper & first | lower & !first
    }

    #[inline(always)]
    fn diagonals(&self, first: i32) -> u64 {
        let at = (first - self.first) as u32;
        let from = copy::arena() + MASK_DIAGONALS + at / 32 * 4;
        let [a, b, c] = [0, 4, 8].map(|i| copy::load_shared_b32(from + i));
        let (low, by) = (a as u64 | (b as u64) << 32, at % 32);
        if by == 0 {
            low
        } else {
            low >> by | (c as u64) << (64 - by)
        }
    }

    #[inline(always)]
    fn range(&self, query: u32) -> [u32; 2] {
        range(self.p, self.length, query)
    }

    #[inline(always)]
    fn edges(&self, query: u32, _: u32) -> [[u32; 2]; 2] {
        // By arithmetic, as [`Self::rows`].
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
    /// The mask's flags as bits in shared memory. The thread block has to meet before they are read.
    #[inline(always)]
    fn new(p: &'a MaskParams, mask: u32, strip: u32) -> Self {
        let top = strip * STRIP as u32;
        let columns = flags_of(p.columns, mask, p.mask_bytes[1]);
        fill(copy::arena(), columns, 0, p.n as i32, p.n.div_ceil(64) * 2);
        // From the last query's diagonal of the first key on, to the first query's of the last.
        let first = (p.m as i32 - top as i32 - STRIP as i32) & !15;
        let diagonals = flags_of(p.diagonals, mask, p.mask_bytes[3]);
        let to = copy::arena() + MASK_DIAGONALS;
        let count = (p.m + p.n - 1) as i32;
        fill(to, diagonals, first, count, (p.n + 480).div_ceil(32));
        let rows = flags_of(p.rows, mask, p.mask_bytes[2]);
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
        let given = global::load_b32_fresh(p.lengths + mask as u64 * 4, p.lengths != 0) as i32;
        let length = if p.lengths == 0 {
            p.n
        } else {
            (given.max(0) as u32).min(p.n)
        };
        // Here, all at once: pieces of keys would wait for them one behind the other.
        let edge = |i: u32| range(p, length, (top + i).min(p.m - 1));
        let (last, next) = (MASK_PIECE - 1, MASK_PIECE);
        let edges = [edge(0), edge(last), edge(next), edge(next + last)];
        View {
            p,
            top,
            blocks: flags_of(p.blocks, mask, p.mask_bytes[0]),
            length,
            first,
            upper: own(top),
            lower: own(top + MASK_PIECE),
            edges,
        }
    }

    /// What a piece of keys is to both halves, as a word of the list.
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

    /// Lists the pieces that hold something; how many. All threads.
    #[inline(always)]
    fn list(&self) -> u32 {
        let pieces = self.p.n.div_ceil(MASK_PIECE);
        let thread = gpu::thread();
        let votes = copy::arena() + MASK_VOTES;
        let mut from = 0;
        while from < pieces {
            let piece = from + thread;
            let word = if piece < pieces { self.state(piece) } else { 0 };
            let vote = warp::ballot(word >> STATE != 0);
            if piece < pieces {
                copy::store_shared_b32(copy::arena() + MASK_STATES + piece * 4, word);
            }
            if thread.is_multiple_of(32) && piece < pieces {
                copy::store_shared_b32(votes + piece / 32 * 4, vote);
            }
            from += DETECT_THREADS;
        }
        gpu::sync_threads();
        let (words, mut before, mut w) = (pieces.div_ceil(32), 0, 0);
        while w < words {
            let vote = copy::load_shared_b32(votes + w * 4);
            let piece = w * 32 + thread % 32;
            if w % (DETECT_THREADS / 32) == thread / 32 && vote >> (thread % 32) & 1 != 0 {
                let rank = before + (vote & ((1 << (thread % 32)) - 1)).count_ones();
                let word = copy::load_shared_b32(copy::arena() + MASK_STATES + piece * 4);
                copy::store_shared_b32(copy::arena() + MASK_LIST + rank * 4, word);
            }
            before += vote.count_ones();
            w += 1;
        }
        gpu::sync_threads();
        before
    }

    /// Piece number `i` of the list; behind the last one there is nothing, behind the last key.
    #[inline(always)]
    fn listed(&self, i: u32, count: u32) -> u32 {
        if i < count {
            copy::load_shared_b32(copy::arena() + MASK_LIST + i * 4)
        } else {
            self.p.n.div_ceil(MASK_PIECE)
        }
    }

    /// Writes the tiles of `count` pieces. `base`: number of the first.
    #[inline(always)]
    fn write_tiles(&self, base: u32, count: u32) {
        let mut t = gpu::thread();
        while t < count.div_ceil(2) {
            let pair = [0, 1].map(|i| self.listed(2 * t + i, count));
            let [a, b] = pair.map(|word| (word & PIECE) * MASK_PIECE);
            let masks = [0, 1].map(|half| mask_of(pair, half, (base + t) * 2 + half));
            let at = self.p.tiles + (base + t) as u64 * size_of::<KeyTile>() as u64;
            global::store_v4(at, [a, b, masks[0], masks[1]]);
            t += DETECT_THREADS;
        }
    }

    /// Writes the bits of tiles that hold some entries: a warpgroup for each half of the queries.
    #[inline(always)]
    fn write_bits(&self, base: u32, count: u32) {
        let (half, own) = (gpu::thread() / 128, gpu::thread() % 128);
        let query = self.top + half * MASK_PIECE + own / 32 * 16 + own % 32 / 4;
        let ranges = [query, query + 8].map(|query| self.range(query));
        let mut t = 0;
        while t < count.div_ceil(2) {
            let pair = [0, 1].map(|i| self.listed(2 * t + i, count));
            let index = (base + t) * 2 + half;
            if mask_of(pair, half, index) == index {
                let words = [
                    self.word(pair[0], half, query, ranges),
                    self.word(pair[1], half, query, ranges),
                ];
                let at = self.p.masks + index as u64 * ATTENTION_MASK as u64;
                global::store_v2(at + own as u64 * 8, words);
            }
            t += 1;
        }
    }

    /// The bits of this thread's accumulators of a piece.
    #[inline(always)]
    fn word(&self, word: u32, half: u32, query: u32, ranges: [[u32; 2]; 2]) -> u32 {
        match word >> (STATE + 2 * half) & 3 {
            0 => 0,
            SOME => {
                let block = word >> (BLOCKS + half) & 1 != 0;
                let key = (word & PIECE) * MASK_PIECE;
                let upper = row_bits(self, query, ranges[0], key, block);
                let lower = row_bits(self, query + 8, ranges[1], key, block);
                mask_word(upper, lower, gpu::thread() % 4)
            }
            _ => u32::MAX,
        }
    }
}

/// [`KeyTile::masks`] of a half; `index` where it has bits of its own.
#[inline(always)]
fn mask_of(pair: [u32; 2], half: u32, index: u32) -> u32 {
    let [a, b] = pair.map(|word| word >> (STATE + 2 * half) & 3);
    match (a, b) {
        (0, 0) => MASK_NONE,
        (ALL, ALL) => MASK_ALL,
        _ => index,
    }
}

impl Body for MaskTiles {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: ElemInfo>(p: &MaskParams, _: u64) {
        grid::let_next_start();
        if p.flags & MASK_BESIDE == 0 {
            grid::wait_for_previous();
        }
        let own = gpu::block_x();
        let mask = over(own, p.strips);
        let strip = own - mask * p.strips;
        let live = global::load_b32_fresh(p.live, p.live != 0);
        let live = if p.live != 0 { live.min(p.m) } else { p.m };
        // A mask has the same strips as any other: those behind the last query are the last of each.
        let strips = live.div_ceil(STRIP as u32);
        if strip < strips {
            let view = View::new(p, mask, strip);
            gpu::sync_threads();
            let pieces = view.list();
            view.write_tiles(own * p.capacity, pieces);
            view.write_bits(own * p.capacity, pieces);
            if gpu::thread() == 0 {
                global::store_b32(p.counts + own as u64 * 4, pieces.div_ceil(2));
            }
        }
        Self::deal_last(p, strips);
        if p.flags & MASK_BESIDE != 0 {
            // Whoever waits for this kernel waits for the one ahead too.
            grid::wait_for_previous();
        }
    }
}
