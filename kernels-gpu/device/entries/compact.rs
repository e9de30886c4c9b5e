//! Dense to CSR: a warp counts what it keeps of some segments of rows, thread blocks find out in passing how many entries are in
//! front of theirs, and the warps read their segments again, out of L1 and L2, and write. What a warp keeps of a segment it lays
//! into shared memory first, so that whole lines are written.

use super::turns::{in_front, start_of, take};
use super::{ALL_LANES, Body, Elem, Raw, copy, element, global, gpu, lane, magnitude, warp, word};
use crate::abi::*;
use crate::device::ptx::grid;

impl<const ALIGNED: bool> Body for Compact<ALIGNED> {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: Elem>(p: &EntriesParams, _at: u64) {
        grid::let_next_start();
        grid::wait_for_previous();
        match (ALIGNED, E::BYTES) {
            (false, _) => compact::<E, 1>(p),
            (true, 8) => compact::<E, 2>(p),
            (true, 4) => compact::<E, 4>(p),
            (true, _) => compact::<E, 8>(p),
        }
    }
}

/// What of a segment this lane holds, and which of it is kept.
struct Held {
    raw: [[u32; 4]; 4],
    keep: [u32; 4],
}

#[inline(always)]
fn compact<E: Elem, const V: usize>(p: &EntriesParams) {
    let turn = take(p);
    let start = (turn.tile * SEGMENTS + gpu::thread() / 32) * p.count;
    let mut kept = 0;
    let mut s = 0;
    while s < p.count {
        let (row, segment) = p.segments.of(start + s);
        let held = hold::<E, V>(p, row, segment);
        unroll!(v < 4, { kept += held.keep[v].count_ones() });
        s += 1;
    }
    let (_, own) = warp_scan(kept);
    let (of_warps, of_tile) = warp_places(own);
    let mut first = in_front(p, turn, of_tile) + of_warps;
    s = 0;
    while s < p.count {
        let (row, segment) = p.segments.of(start + s);
        let own = keep::<E, V>(p, row, segment, first);
        if row < p.m && segment == 0 && lane() == 0 {
            global::store_b32(start_of(p, row), first);
        }
        first += own;
        if row + 1 == p.m && segment + 1 == p.segments.value && lane() == 0 {
            global::store_b32(start_of(p, p.m), first);
        }
        s += 1;
    }
}

/// Writes what is kept of a segment, from entry `first` on; how much it is.
#[inline(always)]
fn keep<E: Elem, const V: usize>(p: &EntriesParams, row: u32, segment: u32, first: u32) -> u32 {
    let held = hold::<E, V>(p, row, segment);
    // Kept elements of the lanes in front and of all, for two vectors in a word.
    let kept = |v: usize| held.keep[v].count_ones();
    let (low, low_all) = warp_scan(kept(0) | kept(1) << 16);
    let (high, high_all) = warp_scan(kept(2) | kept(3) << 16);
    let before = [low & 0xffff, low >> 16, high & 0xffff, high >> 16];
    let all = [
        low_all & 0xffff,
        low_all >> 16,
        high_all & 0xffff,
        high_all >> 16,
    ];
    let local = stage_of_warp();
    let mut own = 0;
    unroll!(v < 4, {
        let beside = (v as u32 * 32 + lane()) * V as u32;
        stage::<E, V>(local, &held.raw[v], held.keep[v], beside, own + before[v]);
        own += all[v];
    });
    // What the lanes laid down is seen by the others.
    warp::sync_lanes(ALL_LANES);
    let room = p.capacity.saturating_sub(first).min(own);
    let column = segment * p.segment_columns;
    let mut at = lane();
    while at < room {
        let (beside, raw) = staged::<E>(local, at);
        let to = first as u64 + at as u64;
        global::store_b32(word(p.out_columns, to), column + beside);
        E::store_raw(p.out_values + to * E::BYTES as u64, raw);
        at += 32;
    }
    warp::sync_lanes(ALL_LANES);
    own
}

/// Loads this lane's part of a segment.
#[inline(always)]
fn hold<E: Elem, const V: usize>(p: &EntriesParams, row: u32, segment: u32) -> Held {
    let column = segment * p.segment_columns + lane() * V as u32;
    let (there, top) = (row < p.m, p.flags & COMPACT_TOP != 0);
    let [low, high, end, _] = global::load_v4_fresh(p.pivots + row as u64 * 16, there && top);
    let pivot = if top {
        (high as u64) << 32 | low as u64
    } else {
        p.floor
    };
    let from = p.source + row as u64 * p.row_bytes + column as u64 * E::BYTES as u64;
    let mut held = Held {
        raw: [[0; 4]; 4],
        keep: [0; 4],
    };
    unroll!(v < 4, {
        let beside = v as u32 * 32 * V as u32;
        let ok = there && beside < p.segment_columns && column + beside < p.k;
        held.raw[v] = E::load::<V>(from + (beside * E::BYTES) as u64, ok);
    });
    unroll!(v < 4, {
        // What was not loaded is zero, which is never above a pivot; with a pivot of zero nothing is taken at it.
        unroll!(i < V, {
            let own = magnitude::<E>(element::<E>(&held.raw[v], i));
            let at = column + v as u32 * 32 * V as u32 + i as u32;
            let keep = own > pivot || own == pivot && at < end;
            held.keep[v] |= (keep as u32) << i;
        });
    });
    held
}

/// Sum of the lanes in front, and of all.
#[inline(always)]
fn warp_scan(value: u32) -> (u32, u32) {
    let mut inclusive = value;
    let mut step = 1;
    while step < 32 {
        let before = warp::shuffle::<32>(inclusive, lane().wrapping_sub(step) & 31, ALL_LANES);
        inclusive += if lane() >= step { before } else { 0 };
        step *= 2;
    }
    (
        inclusive - value,
        warp::shuffle::<32>(inclusive, 31, ALL_LANES),
    )
}

/// Sum of the warps in front, and of all. Every thread must call it.
#[inline(always)]
fn warp_places(own: u32) -> (u32, u32) {
    let warp = gpu::thread() / 32;
    if lane() == 0 {
        copy::store_shared_b32(copy::arena() + warp * 4, own);
    }
    gpu::sync_threads();
    let (mut before, mut all) = (0, 0);
    unroll!(w < 8, {
        let count = copy::load_shared_b32(copy::arena() + w as u32 * 4);
        before += if (w as u32) < warp { count } else { 0 };
        all += count;
    });
    gpu::sync_threads();
    (before, all)
}

/// Where this warp lays what it keeps.
#[inline(always)]
fn stage_of_warp() -> u32 {
    copy::arena() + TURNS_BYTES + gpu::thread() / 32 * KEPT_BYTES
}

/// Lays down what is kept of a vector, from place `first` on, with its column in the segment; in straight code, whatever is kept.
#[inline(always)]
fn stage<E: Elem, const V: usize>(stage: u32, raw: &Raw, keep: u32, column: u32, first: u32) {
    let mut at = first;
    unroll!(i < V, {
        let kept = keep >> i & 1;
        let value = element::<E>(raw, i);
        let column = column + i as u32;
        match E::BYTES {
            8 => {
                copy::store_shared_v2_if(stage + at * 8, [value[0], value[1]], kept != 0);
                let columns = stage + KEPT_BYTES / 2;
                copy::store_shared_b32_if(columns + at * 4, column, kept != 0);
            }
            4 => copy::store_shared_v2_if(stage + at * 8, [value[0], column], kept != 0),
            _ => copy::store_shared_b32_if(stage + at * 4, value[0] | column << 16, kept != 0),
        }
        at += kept;
    });
}

/// Column in the segment and value at a place.
#[inline(always)]
fn staged<E: Elem>(stage: u32, at: u32) -> (u32, Raw) {
    match E::BYTES {
        8 => {
            let [low, high] = copy::load_shared_v2(stage + at * 8);
            let column = copy::load_shared_b32(stage + KEPT_BYTES / 2 + at * 4);
            (column, [low, high, 0, 0])
        }
        4 => {
            let [value, column] = copy::load_shared_v2(stage + at * 8);
            (column, [value, 0, 0, 0])
        }
        _ => {
            let pair = copy::load_shared_b32(stage + at * 4);
            (pair >> 16, [pair & 0xffff, 0, 0, 0])
        }
    }
}
