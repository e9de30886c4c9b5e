//! Stable LSD radix sort: three kernels for each digit, lowest digit first. A tile is 4096 keys, 512 for each warp.
//! `SortCount` counts the keys of each digit in a tile (shared memory). `SortPlace` replaces the counts of a digit by
//! running sums over the tiles, one thread block for each digit. `SortMove` ranks the keys of a warp, 32 at a time, by
//! ballots. It orders keys and payloads in shared memory, then stores them to adjacent addresses. Eight loads of each
//! thread are in flight.

use super::{ALL_LANES, WARPS, after_scan, lane, scan};
use crate::device::compact::{ones_before, scan_all};
use crate::device::prelude::*;
use crate::device::strided::{clear, strided};
use crate::families::convert::abi::*;

/// Keys per warp in a tile.
const WARP_KEYS: u32 = SORT_TILE / WARPS;

/// Returns key `at`. Padding becomes key `p.k`, after all others.
#[inline(always)]
fn key(p: &EntriesParams, at: u32, inside: bool) -> u32 {
    if p.flags & (SORT_CLASSES | SORT_LENGTHS) == 0 {
        return p.keys().at(at).ld_if(inside).min(p.k);
    }
    let start = p.offsets().at(at).ld_if(inside);
    let end = p.offsets().at(at as u64 + 1).ld_if(inside);
    let length = end.wrapping_sub(start);
    if p.flags & SORT_CLASSES != 0 { length.leading_zeros() } else { p.k.saturating_sub(length) }
}

#[inline(always)]
fn digit(p: &EntriesParams, key: u32) -> u32 {
    key >> p.shift & ((1 << p.bits) - 1)
}

#[inline(always)]
fn first_key() -> u32 {
    gpu::block_x() * SORT_TILE + gpu::thread() / 32 * WARP_KEYS + lane()
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, EntriesParams> for SortCount {
    #[inline(always)]
    unsafe fn run(p: &EntriesParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let digits = 1 << p.bits;
        // SAFETY: `SortCount` has a word for each of at most `1 << SORT_BITS` digits.
        let counters = unsafe { Shared::<u32>::dynamic(0) };
        clear(counters, digits, SCAN_THREADS);
        gpu::sync_threads();
        unroll!(half < 2, {
            let mut keys = [0u32; 8];
            let first = first_key() + half as u32 * 256;
            unroll!(i < 8, {
                let at = first + i as u32 * 32;
                keys[i] = key(p, at, at < p.count);
            });
            unroll!(i < 8, {
                if first + (i as u32) * 32 < p.count {
                    counters.at(digit(p, keys[i])).red_add(1);
                }
            });
        });
        gpu::sync_threads();
        strided(gpu::thread(), digits, SCAN_THREADS, |d| {
            let at = d as u64 * p.tiles as u64 + gpu::block_x() as u64;
            p.counts().at(at).st(counters.at(d).ld());
        });
    }
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, EntriesParams> for SortPlace {
    /// One thread block per digit.
    #[inline(always)]
    unsafe fn run(p: &EntriesParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let counts = p.counts().at(gpu::block_x() as u64 * p.tiles as u64);
        let sum = scan_all::<4>(
            p.tiles,
            |tile, inside| counts.at(tile).ld_if(inside),
            |tile, before| counts.at(tile).st(before),
        );
        if gpu::thread() == 0 {
            p.totals().at(gpu::block_x()).st(sum);
        }
    }
}

/// Shared memory of [`SortMove`] after that of the scan: counters of every warp, a distance for each digit, and three
/// arrays of one word per key. The distance is the output position of a digit minus its position in the tile.
#[derive(Clone, Copy)]
struct Ranges {
    digits: u32,
}

impl Ranges {
    /// Number of keys of a digit in each warp; later the position in the tile of the warp's first such key.
    #[inline(always)]
    fn counters(self, warp: u32) -> Shared<u32> {
        after_scan().at(warp * self.digits)
    }

    #[inline(always)]
    fn distance(self, digit: u32) -> Shared<u32> {
        after_scan().at(WARPS * self.digits + digit)
    }

    #[inline(always)]
    fn keys(self) -> Shared<u32> {
        after_scan().at((WARPS + 1) * self.digits)
    }

    /// The values to move, in key order.
    #[inline(always)]
    fn words(self) -> Shared<u32> {
        self.keys().at(SORT_TILE)
    }

    /// Digit and rank of this thread's key `i`; later its position in the tile.
    #[inline(always)]
    fn place(self, i: u32) -> Shared<u32> {
        self.words().at(SORT_TILE + gpu::thread() / 32 * WARP_KEYS + i * 32 + lane())
    }
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, EntriesParams> for SortMove {
    #[inline(always)]
    unsafe fn run(p: &EntriesParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let shared = Ranges { digits: 1 << p.bits };
        clear(shared.counters(0), shared.digits * WARPS, SCAN_THREADS);
        gpu::sync_threads();
        let own = shared.counters(gpu::thread() / 32);
        let mut done = 0;
        while done < 16 {
            let mut found = [0u32; 8];
            unroll!(i < 8, {
                let at = first_key() + (done + i as u32) * 32;
                found[i] = digit(p, key(p, at, at < p.count));
            });
            unroll!(i < 8, {
                let at = first_key() + (done + i as u32) * 32;
                let place = found[i] << 16 | rank(p, own, found[i], at < p.count);
                shared.place(done + i as u32).st(place);
            });
            done += 8;
        }
        gpu::sync_threads();
        digit_offsets(p, shared);
        gpu::sync_threads();
        // Words are ordered in shared memory first, one array after the other, so that a warp stores neighbors.
        stage(p, shared.keys(), shared, own, true, |at, ok| key(p, at, ok));
        let first = |at: u32, ok: bool| match p.flags & SORT_FIRST {
            0 => p.first().at(at).ld_if(ok),
            _ => at,
        };
        if p.flags & SORT_KEYS != 0 {
            store(p, shared, |i, to| {
                p.out_keys().at(to).st(shared.keys().at(i).ld());
            });
        }
        stage(p, shared.words(), shared, own, false, first);
        let pairs = p.flags & SORT_PAIRS != 0;
        // Padding is last and is dropped by the capacity check.
        store(p, shared, |i, to| {
            put(p, pairs, (p.out_first(), 1), to, shared.words().at(i));
        });
        if p.flags & SORT_SECOND == 0 {
            return;
        }
        gpu::sync_threads();
        stage(p, shared.words(), shared, own, false, |at, ok| p.second().at(at).ld_if(ok));
        store(p, shared, |i, to| {
            put(p, pairs, (p.out_second(), 0), to, shared.words().at(i));
        });
    }
}

/// Stores a word of shared memory for output position `to`, if that is below the capacity: in its own array,
/// or as word `word` of a pair.
#[inline(always)]
fn put(
    p: &EntriesParams,
    pairs: bool,
    (array, word): (Global<u32, ReadWrite>, u32),
    to: u32,
    own: Shared<u32>,
) {
    let own = own.ld();
    if to < p.capacity && pairs {
        p.out_first().cast::<[u32; 2]>().at(to).cast::<u32>().at(word).st(own);
    } else if to < p.capacity {
        array.at(to).st(own);
    }
}

/// Stores words of this thread's keys at their positions in the tile. `places`: first computes the positions from
/// digits and ranks. Every thread must call it.
#[inline(always)]
fn stage(
    p: &EntriesParams,
    array: Shared<u32>,
    shared: Ranges,
    counters: Shared<u32>,
    places: bool,
    load: impl Fn(u32, bool) -> u32,
) {
    let mut done = 0;
    while done < 16 {
        let mut words = [0u32; 8];
        unroll!(i < 8, {
            let at = first_key() + (done + i as u32) * 32;
            words[i] = load(at, at < p.count);
        });
        unroll!(i < 8, {
            let at = first_key() + (done + i as u32) * 32;
            let mut place = shared.place(done + i as u32).ld();
            if places {
                place = counters.at(place >> 16).ld() + (place & 0xffff);
                shared.place(done + i as u32).st(place);
            }
            if at < p.count {
                array.at(place).st(words[i]);
            }
        });
        done += 8;
    }
    gpu::sync_threads();
}

/// Calls `store` with the positions in the tile, in order, and those in the output.
#[inline(always)]
fn store(p: &EntriesParams, shared: Ranges, store: impl Fn(u32, u32)) {
    let keys = (p.count - gpu::block_x() * SORT_TILE).min(SORT_TILE);
    let mut first = gpu::thread();
    while first < keys {
        unroll!(u < 4, {
            let i = first + u as u32 * SCAN_THREADS;
            if i < keys {
                let key = shared.keys().at(i).ld();
                let distance = shared.distance(digit(p, key)).ld();
                store(i, i.wrapping_add(distance));
            }
        });
        first += 4 * SCAN_THREADS;
    }
}

/// Number of keys of this digit before this lane's key in the warp's part of the tile. Every lane must call it.
#[inline(always)]
fn rank(p: &EntriesParams, counters: Shared<u32>, digit: u32, inside: bool) -> u32 {
    let mut peers = warp::ballot(inside);
    let mut bit = 0;
    while bit < p.bits {
        let set = digit >> bit & 1 != 0;
        let votes = warp::ballot(set);
        peers &= if set { votes } else { !votes };
        bit += 1;
    }
    let before = counters.at(digit).ld();
    let behind = ones_before(peers);
    warp::sync(ALL_LANES);
    if inside && behind == 0 {
        counters.at(digit).st(before + peers.count_ones());
    }
    warp::sync(ALL_LANES);
    before + behind
}

/// Replaces each warp's count of a digit by the position in the tile of the warp's first key of this digit. Keys of
/// smaller digits and of preceding warps come first. Also stores the distance of each digit: its output position minus
/// its position in the tile.
#[inline(always)]
fn digit_offsets(p: &EntriesParams, shared: Ranges) {
    let (mut first, mut sum, mut in_tile) = (0, 0, 0);
    while first < shared.digits {
        let digit = first + gpu::thread();
        let inside = digit < shared.digits;
        let total = p.totals().at(digit).ld_if(inside);
        let at = digit as u64 * p.tiles as u64 + gpu::block_x() as u64;
        let in_front = p.counts().at(at).ld_if(inside);
        let mut own = 0;
        unroll!(w < 8, {
            let count = shared.counters(w as u32).at(digit);
            own += if inside { count.ld() } else { 0 };
        });
        let (before, all) = scan(total);
        let (place, of_tile) = scan(own);
        if inside {
            let mut place = in_tile + place;
            let to = sum + before + in_front;
            shared.distance(digit).st(to.wrapping_sub(place));
            unroll!(w < 8, {
                let own = shared.counters(w as u32).at(digit);
                let count = own.ld();
                own.st(place);
                place += count;
            });
        }
        sum += all;
        in_tile += of_tile;
        first += SCAN_THREADS;
    }
}
