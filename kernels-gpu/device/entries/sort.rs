//! A stable counting sort, one digit a pass: keys of a digit are counted for every tile, running sums over the tiles
//! and digits say where those of a tile go, and in a tile warps rank what they hold in order, equal digits by ballot.

use super::{ALL_LANES, Body, WARPS, behind_scan, lane, scan, word};
use super::{copy, global, gpu, warp};
use crate::abi::*;
use crate::device::elem::Elem;
use crate::device::ptx::grid;

/// Keys of a warp in a tile.
const WARP_KEYS: u32 = SORT_TILE / WARPS;

/// Key `at`. Padding counts as column k, behind all others.
#[inline(always)]
fn key(p: &EntriesParams, at: u32, inside: bool) -> u32 {
    if p.flags & (SORT_CLASSES | SORT_LENGTHS) == 0 {
        return global::load_b32_fresh(word(p.keys, at as u64), inside).min(p.k);
    }
    let start = global::load_b32_fresh(word(p.offsets, at as u64), inside);
    let end = global::load_b32_fresh(word(p.offsets, at as u64 + 1), inside);
    let length = end.wrapping_sub(start);
    if p.flags & SORT_CLASSES != 0 {
        length.leading_zeros()
    } else {
        p.k.saturating_sub(length)
    }
}

#[inline(always)]
fn digit(p: &EntriesParams, key: u32) -> u32 {
    key >> p.shift & ((1 << p.bits) - 1)
}

/// First key of this lane.
#[inline(always)]
fn first_key() -> u32 {
    gpu::block_x() * SORT_TILE + gpu::thread() / 32 * WARP_KEYS + lane()
}

impl Body for SortCount {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: Elem>(p: &EntriesParams, _at: u64) {
        grid::let_next_start();
        grid::wait_for_previous();
        let (digits, counters) = (1 << p.bits, copy::arena());
        let mut d = gpu::thread();
        while d < digits {
            copy::store_shared_b32(counters + d * 4, 0);
            d += CONVERT_THREADS;
        }
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
                    copy::add_shared(counters + digit(p, keys[i]) * 4, 1);
                }
            });
        });
        gpu::sync_threads();
        d = gpu::thread();
        while d < digits {
            let at = d as u64 * p.tiles as u64 + gpu::block_x() as u64;
            global::store_b32(word(p.counts, at), copy::load_shared_b32(counters + d * 4));
            d += CONVERT_THREADS;
        }
    }
}

impl Body for SortPlace {
    /// A thread block for each digit.
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: Elem>(p: &EntriesParams, _at: u64) {
        grid::let_next_start();
        grid::wait_for_previous();
        let counts = word(p.counts, gpu::block_x() as u64 * p.tiles as u64);
        let (mut first, mut sum) = (0, 0);
        while first < p.tiles {
            let tile = first + gpu::thread() * 4;
            let mut own = [0u32; 4];
            unroll!(i < 4, {
                let at = tile + i as u32;
                own[i] = global::load_b32_fresh(word(counts, at as u64), at < p.tiles);
            });
            let (before, all) = scan(own[0] + own[1] + own[2] + own[3]);
            let mut place = sum + before;
            unroll!(i < 4, {
                let at = tile + i as u32;
                if at < p.tiles {
                    global::store_b32(word(counts, at as u64), place);
                }
                place += own[i];
            });
            sum += all;
            first += 4 * CONVERT_THREADS;
        }
        if gpu::thread() == 0 {
            global::store_b32(word(p.totals, gpu::block_x() as u64), sum);
        }
    }
}

impl Body for SortMove {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: Elem>(p: &EntriesParams, _at: u64) {
        grid::let_next_start();
        grid::wait_for_previous();
        let (digits, counters) = (1u32 << p.bits, behind_scan());
        let mut w = gpu::thread();
        while w < digits * WARPS {
            copy::store_shared_b32(counters + w * 4, 0);
            w += CONVERT_THREADS;
        }
        gpu::sync_threads();
        let own = counters + gpu::thread() / 32 * digits * 4;
        // Digit and rank of each key, both below 2^16, in a word of shared memory: registers would not do.
        let places =
            counters + digits * WARPS * 4 + gpu::thread() / 32 * WARP_KEYS * 4 + lane() * 4;
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
                copy::store_shared_b32(places + (done + i as u32) * 128, place);
            });
            done += 8;
        }
        gpu::sync_threads();
        bases(p, counters, digits);
        gpu::sync_threads();
        done = 0;
        while done < 16 {
            deliver(p, own, places + done * 128, first_key() + done * 32);
            done += 4;
        }
    }
}

/// How many keys of this digit stand in front of this lane's in the warp's part of the tile. Every lane must call it.
#[inline(always)]
fn rank(p: &EntriesParams, counters: u32, digit: u32, inside: bool) -> u32 {
    let mut peers = warp::ballot(inside);
    let mut bit = 0;
    while bit < p.bits {
        let set = digit >> bit & 1 != 0;
        let votes = warp::ballot(set);
        peers &= if set { votes } else { !votes };
        bit += 1;
    }
    let before = copy::load_shared_b32(counters + digit * 4);
    let behind = (peers & ((1u32 << lane()) - 1)).count_ones();
    warp::sync_lanes(ALL_LANES);
    if inside && behind == 0 {
        copy::store_shared_b32(counters + digit * 4, before + peers.count_ones());
    }
    warp::sync_lanes(ALL_LANES);
    before + behind
}

/// Turns each warp's count of a digit into the place of its first key: behind the smaller digits, those of the tiles
/// in front and those of the warps in front.
#[inline(always)]
fn bases(p: &EntriesParams, counters: u32, digits: u32) {
    let mut first = 0;
    let mut sum = 0;
    while first < digits {
        let digit = first + gpu::thread();
        let inside = digit < digits;
        let total = global::load_b32_fresh(word(p.totals, digit as u64), inside);
        let (before, all) = scan(total);
        let at = digit as u64 * p.tiles as u64 + gpu::block_x() as u64;
        let mut place = sum + before + global::load_b32_fresh(word(p.counts, at), inside);
        if inside {
            unroll!(w < 8, {
                let at = counters + (w as u32 * digits + digit) * 4;
                let count = copy::load_shared_b32(at);
                copy::store_shared_b32(at, place);
                place += count;
            });
        }
        sum += all;
        first += CONVERT_THREADS;
    }
}

/// Four keys of a lane, 32 apart, to their places.
#[inline(always)]
fn deliver(p: &EntriesParams, counters: u32, places: u32, base: u32) {
    let mut to = [0u32; 4];
    let mut first = [0u32; 4];
    let mut second = [0u32; 4];
    unroll!(i < 4, {
        let at = base + i as u32 * 32;
        let place = copy::load_shared_b32(places + i as u32 * 128);
        to[i] = copy::load_shared_b32(counters + (place >> 16) * 4) + (place & 0xffff);
        let (ok, given) = (at < p.count, p.flags & SORT_FIRST == 0);
        first[i] = global::load_b32_fresh(word(p.first, at as u64), ok && given);
        first[i] = if given { first[i] } else { at };
        let carried = p.flags & SORT_SECOND != 0;
        second[i] = global::load_b32_fresh(word(p.second, at as u64), ok && carried);
    });
    unroll!(i < 4, {
        let at = base + i as u32 * 32;
        let place = to[i] as u64;
        if at < p.count && p.flags & SORT_KEYS != 0 {
            global::store_b32(word(p.out_keys, place), key(p, at, true));
        }
        // What is padding comes last, and has no place.
        if at < p.count && to[i] < p.capacity {
            if p.flags & SORT_PAIRS != 0 {
                global::store_v2(p.out_first + place * 8, [second[i], first[i]]);
            } else {
                global::store_b32(word(p.out_first, place), first[i]);
                if p.flags & SORT_SECOND != 0 {
                    global::store_b32(word(p.out_second, place), second[i]);
                }
            }
        }
    });
}
