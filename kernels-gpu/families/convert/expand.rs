//! Single entries to the dense matrix they are of: a warp lays the entries of a few groups of elements into shared
//! memory between zeros, and writes whole lines.

use crate::device::prelude::*;
use crate::families::convert::abi::*;

/// First entry of a row from column `column` on.
#[inline(always)]
fn lower_bound(p: &ExpandParams, row: u32, column: u32) -> u32 {
    let [start, len] = global::load_v2(p.spans + row as u64 * 8, true);
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low + (high - low) / 2;
        let at = p.columns + (start as u64 + middle as u64) * 4;
        if global::load_b32(at, true) < column {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    start + low
}

/// A first entry, and a word of places, a thread.
#[inline(always)]
fn place(p: &ExpandParams) {
    let own = gpu::block_x() * Expand::<EXPAND_PLACES>::THREADS + gpu::thread();
    // Behind the groups of a row comes its end.
    let row = own.checked_div(p.row_groups.value + 1).unwrap_or(0);
    if row < p.rows {
        let of_row = own - row * (p.row_groups.value + 1);
        let end = of_row == p.row_groups.value;
        let column = if end { u32::MAX } else { of_row * p.group };
        let first = lower_bound(p, row, column);
        global::store_b32(p.starts + own as u64 * 4, first);
    }
    let first = own as u64 * 4;
    if first < p.entries as u64 {
        let mut word = 0;
        unroll!(i < 4, {
            let at = first + i as u64;
            let column = global::load_b32(p.columns + at * 4, at < p.entries as u64);
            word |= (column & (p.group - 1)) << (8 * i);
        });
        global::store_b32(p.places + first, word);
    }
}

/// Lays up to 64 entries of each group, from `base` on, into shared memory.
#[inline(always)]
fn lay<E: ElemInfo>(p: &ExpandParams, spans: &[[u32; 2]; GROUPS_AT_ONCE], base: u32, tile: u32) {
    let bytes = E::DTYPE.bytes() as u32;
    let mut places = [[0; 2]; GROUPS_AT_ONCE];
    let mut values = [[0; 2]; GROUPS_AT_ONCE];
    unroll!(i < GROUPS_AT_ONCE, {
        unroll!(j < 2, {
            let entry = spans[i][0] + base + j as u32 * 32;
            let inside = entry < spans[i][1];
            places[i][j] = global::load_b8(p.places + entry as u64, inside);
            let from = p.values + entry as u64 * bytes as u64;
            values[i][j] = if bytes == 2 {
                global::load_b16_fresh(from, inside)
            } else {
                global::load_b32_fresh(from, inside)
            };
        });
    });
    unroll!(i < GROUPS_AT_ONCE, {
        unroll!(j < 2, {
            let to = tile + i as u32 * GROUP_BYTES + places[i][j] * bytes;
            if spans[i][0] + base + j as u32 * 32 < spans[i][1] {
                if bytes == 2 {
                    copy::store_shared_b16(to, values[i][j]);
                } else {
                    copy::store_shared_b32(to, values[i][j]);
                }
            }
        });
    });
}

#[inline(always)]
fn write<E: ElemInfo>(p: &ExpandParams) {
    grid::launch_dependents();
    let lane = gpu::thread() % 32;
    let first = gpu::block_x() * Expand::<EXPAND_VALUES>::ITEMS
        + gpu::thread() / 32 * GROUPS_AT_ONCE as u32;
    let tile = copy::arena() + gpu::thread() / 32 * GROUPS_AT_ONCE as u32 * GROUP_BYTES;
    let (mut spans, mut longest) = ([[0; 2]; GROUPS_AT_ONCE], 0);
    unroll!(i < GROUPS_AT_ONCE, {
        copy::store_shared_v4(tile + i as u32 * GROUP_BYTES + lane * 16, [0; 4]);
        let group = first + i as u32;
        let (row, _) = p.row_groups.of(group);
        let at = p.starts + (group as u64 + row as u64) * 4;
        let inside = group < p.groups;
        spans[i] = [
            global::load_b32(at, inside),
            global::load_b32(at + 4, inside),
        ];
        let entries = spans[i][1] - spans[i][0];
        longest = if entries > longest { entries } else { longest };
        spans[i][0] += lane;
    });
    // What places are made of is there since the plan was made; values and the matrix are not.
    grid::wait_dependency();
    warp::sync_lanes(u32::MAX);
    let mut base = 0;
    while base < longest {
        lay::<E>(p, &spans, base, tile);
        base += 64;
    }
    warp::sync_lanes(u32::MAX);
    unroll!(i < GROUPS_AT_ONCE, {
        let group = first + i as u32;
        let (row, of_row) = p.row_groups.of(group);
        let at = of_row as u64 * GROUP_BYTES as u64 + lane as u64 * 16;
        let words = copy::load_shared_v4(tile + i as u32 * GROUP_BYTES + lane * 16);
        if group < p.groups && at < p.row_bytes {
            global::store_v4(p.out + row as u64 * p.row_bytes + at, words);
        }
    });
}

impl<W: WalkInfo, E: ElemInfo, const STEP: u32> Kernel<W, E, ExpandParams> for Expand<STEP> {
    #[inline(always)]
    unsafe fn run(p: &ExpandParams, _: u64) {
        if STEP == EXPAND_PLACES {
            place(p);
        } else {
            write::<E>(p);
        }
    }
}
