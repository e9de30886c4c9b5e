//! SpMM on CUDA cores: `SPLIT` segments of lanes share one work item (a row or a piece of it), gather
//! rows of B, several in flight, and keep their columns of C in registers. Sub-warp tiling, aligned
//! loads and row swizzle as in Sputnik (arXiv 2006.10901, section 5); rows cut over items are carried,
//! not added by atomics.

use super::elem::Elem;
use super::epilogue::{finish, row_bias, scale};
use super::gpu;
use super::ptx::{copy, global, warp};
use super::walk::Walk;
use crate::abi::*;

/// The body, generic over walk and element; the tile is the implementor.
pub trait Body: Tile {
    /// # Safety
    /// `p` describes live device memory and the launch has this tile's geometry.
    unsafe fn run<W: Walk, E: Elem>(p: &SpmmParams, _at: u64);
}

/// Accumulators of one lane.
type Acc<E, const VEC: usize, const REP: usize> = [[<E as Elem>::Acc; VEC]; REP];

impl<const LANES: u32, const VEC: usize, const REP: usize, const UNROLL: usize, const SPLIT: u32>
    Body for SubWarp<LANES, VEC, REP, UNROLL, SPLIT>
{
    #[inline(always)]
    unsafe fn run<W: Walk, E: Elem>(p: &SpmmParams, _at: u64) {
        let lane = gpu::thread() % LANES;
        let part = gpu::thread() / LANES % SPLIT;
        let index = gpu::block_x() * Self::ITEMS + gpu::thread() / (LANES * SPLIT);
        let inside = index < p.item_count;
        // With one part nobody waits for anybody; else every thread must reach the barrier.
        if SPLIT == 1 && !inside {
            return;
        }
        let [row, start, len, slot] = global::load_v4_stream(p.items + index as u64 * 16, inside);
        let column = gpu::block_y() * Self::COLUMNS + lane * VEC as u32;
        let mut acc = gather::<W, E, LANES, VEC, REP, UNROLL, SPLIT>(p, start, len, part, column);
        if SPLIT > 1 {
            join::<E, LANES, VEC, REP, SPLIT>(part, &mut acc);
            if part > 0 || !inside {
                return;
            }
        }
        if slot != WHOLE_ROW && !carry::<E, LANES, VEC, REP>(p, slot, lane, column, &mut acc) {
            return;
        }
        let factors = (scale::<E>(p.output(), len), row_bias::<E>(p.output(), row));
        unroll!(r < REP, {
            finish::<E, VEC>(
                p.output(),
                row,
                column + r as u32 * LANES * VEC as u32,
                factors,
                acc[r],
            );
        });
    }
}

/// Sum over the item's entries of value x row of B, in entry order: this part takes bursts `part`,
/// `part + SPLIT`, ...
#[inline(always)]
fn gather<
    W: Walk,
    E: Elem,
    const LANES: u32,
    const VEC: usize,
    const REP: usize,
    const UNROLL: usize,
    const SPLIT: u32,
>(
    p: &SpmmParams,
    start: u32,
    len: u32,
    part: u32,
    column: u32,
) -> Acc<E, VEC, REP> {
    let mut acc = [[E::ZERO; VEC]; REP];
    let b = p.b + column as u64 * E::BYTES as u64;
    let lead = W::lead(start);
    let (base, end) = (start as u64 - lead as u64, lead + len);
    let fetch = |at: u32| {
        let second = UNROLL > 4 && at + 4 < end;
        W::fetch::<E>(p, base + at as u64, at < end, second)
    };
    let mut at = part * UNROLL as u32;
    let mut next = fetch(at);
    while at < end {
        let batch = next;
        next = fetch(at + UNROLL as u32 * SPLIT);
        let mut raw = [[[0u32; 4]; REP]; UNROLL];
        let mut value = [E::ZERO; UNROLL];
        unroll!(u < UNROLL, {
            let exists = at + (u as u32) >= lead && at + (u as u32) < end;
            let (col, v) = W::entry::<E>(p, &batch, u, exists);
            value[u] = if exists { v } else { E::ZERO };
            let from = b + col as u64 * p.ldb_bytes as u64;
            unroll!(r < REP, {
                let shift = r as u32 * LANES * VEC as u32;
                let ok = exists && column + shift < p.n;
                raw[u][r] = E::load::<VEC>(from + (shift * E::BYTES) as u64, ok);
            });
        });
        unroll!(u < UNROLL, {
            unroll!(r < REP, {
                unroll!(i < VEC, {
                    acc[r][i] = E::fma(value[u], E::get(&raw[u][r], i), acc[r][i]);
                });
            });
        });
        at += UNROLL as u32 * SPLIT;
    }
    acc
}

/// Adds the parts of an item in part 0, in order, through shared memory.
#[inline(always)]
fn join<E: Elem, const LANES: u32, const VEC: usize, const REP: usize, const SPLIT: u32>(
    part: u32,
    acc: &mut Acc<E, VEC, REP>,
) {
    // Words of one thread lie a block apart: neighbours fall into different banks.
    let thread = |part: u32, i: u32| {
        let t = gpu::thread() / (LANES * SPLIT) * (LANES * SPLIT)
            + part * LANES
            + gpu::thread() % LANES;
        copy::arena() + (i * SubWarp::<LANES, VEC, REP, 1, SPLIT>::THREADS + t) * E::ACC_BYTES
    };
    if part > 0 {
        unroll!(r < REP, {
            unroll!(i < VEC, {
                E::store_shared(thread(part, (r * VEC + i) as u32), acc[r][i])
            });
        });
    }
    gpu::sync_threads();
    if part == 0 {
        let mut other = 1;
        while other < SPLIT {
            unroll!(r < REP, {
                unroll!(i < VEC, {
                    let more = E::load_shared(thread(other, (r * VEC + i) as u32));
                    acc[r][i] = E::add(acc[r][i], more);
                });
            });
            other += 1;
        }
    }
}

/// Leaves the partial sum of a cut row. True for the segment that arrives last: its accumulators then
/// hold the row's sum, added in slot order.
#[inline(always)]
fn carry<E: Elem, const LANES: u32, const VEC: usize, const REP: usize>(
    p: &SpmmParams,
    slot: u32,
    lane: u32,
    column: u32,
    acc: &mut Acc<E, VEC, REP>,
) -> bool {
    let members = (u32::MAX >> (32 - LANES)) << (gpu::thread() % 32 / LANES * LANES);
    let [counter, first, count, _] = global::load_v4(p.slots + slot as u64 * 16, true);
    let at = |s: u32, r: usize, i: usize| {
        let c = column as u64 + (r as u32 * LANES * VEC as u32) as u64 + i as u64;
        p.partial + (s as u64 * p.partial_columns as u64 + c) * E::ACC_BYTES as u64
    };
    unroll!(r < REP, {
        unroll!(i < VEC, { E::store_acc(at(slot, r, i), acc[r][i]) });
    });
    global::fence_gpu();
    warp::sync_lanes(members);
    let arrivals = p.counters + (counter as u64 * gpu::grid_y() as u64 + gpu::block_y() as u64) * 4;
    let mut before = 0;
    if lane == 0 {
        before = global::atomic_add(arrivals, 1);
    }
    if warp::shuffle::<LANES>(before, 0, members) + 1 != count {
        return false;
    }
    // A shuffle orders no memory.
    warp::sync_lanes(members);
    global::fence_gpu();
    *acc = [[E::ZERO; VEC]; REP];
    let mut s = first;
    while s < first + count {
        unroll!(r < REP, {
            unroll!(i < VEC, {
                acc[r][i] = E::add(acc[r][i], E::load_acc(at(s, r, i)));
            });
        });
        s += 1;
    }
    if lane == 0 {
        global::store_b32(arrivals, 0);
    }
    true
}
