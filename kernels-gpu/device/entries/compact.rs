//! Dense to CSR in one pass: a warp holds a segment of a row in registers, thread blocks find out in passing how many
//! entries are in front of theirs, and every element goes to its place.

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
    let (row, segment) = p.segments.of(turn.tile * SEGMENTS + gpu::thread() / 32);
    let column = segment * p.segment_columns + lane() * V as u32;
    let held = hold::<E, V>(p, row, column);
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
    let own = all[0] + all[1] + all[2] + all[3];
    let (of_warps, of_tile) = warp_places(own);
    let first = in_front(p, turn, of_tile) + of_warps;
    if row < p.m && segment == 0 && lane() == 0 {
        global::store_b32(start_of(p, row), first);
    }
    if row + 1 == p.m && segment + 1 == p.segments.value && lane() == 0 {
        global::store_b32(start_of(p, p.m), first + own);
    }
    let mut start = first;
    unroll!(v < 4, {
        write::<E>(
            p,
            &held.raw[v],
            held.keep[v],
            column + v as u32 * 32 * V as u32,
            start + before[v],
        );
        start += all[v];
    });
}

#[inline(always)]
fn hold<E: Elem, const V: usize>(p: &EntriesParams, row: u32, column: u32) -> Held {
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

/// What is kept of a vector. Most elements are not: a loop over those that are takes fewer steps than one over all.
#[inline(always)]
fn write<E: Elem>(p: &EntriesParams, raw: &Raw, keep: u32, column: u32, first: u32) {
    let (mut to, mut left) = (first, keep);
    while left != 0 {
        let i = left.trailing_zeros();
        if to < p.capacity {
            global::store_b32(word(p.out_columns, to as u64), column + i);
            E::store_raw(
                p.out_values + to as u64 * E::BYTES as u64,
                chosen::<E>(raw, i),
            );
        }
        to += 1;
        left &= left - 1;
    }
}

/// Element `i` of a raw vector, `i` known at run time only.
#[inline(always)]
fn chosen<E: Elem>(raw: &Raw, i: u32) -> Raw {
    let of_pair = |high: bool| {
        if high {
            [raw[2], raw[3]]
        } else {
            [raw[0], raw[1]]
        }
    };
    match E::BYTES {
        8 => {
            let [low, high] = of_pair(i > 0);
            [low, high, 0, 0]
        }
        4 => {
            let [even, odd] = of_pair(i > 1);
            [if i % 2 == 0 { even } else { odd }, 0, 0, 0]
        }
        _ => {
            let [even, odd] = of_pair(i > 3);
            let pair = if i & 2 == 0 { even } else { odd };
            [pair >> (i % 2 * 16) & 0xffff, 0, 0, 0]
        }
    }
}
