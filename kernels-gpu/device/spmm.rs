//! SpMM on CUDA cores: a segment of lanes takes one work item (a row or a piece of it), gathers rows
//! of B, several in flight, and keeps its columns of C in registers. Sub-warp tiling and row swizzle
//! as in Sputnik (arXiv 2006.10901, section 5); rows split over items are carried, not added by atomics.

use super::elem::Elem;
use super::epilogue::{finish, row_bias};
use super::gpu;
use super::ptx::{global, warp};
use super::walk::Walk;
use crate::abi::*;

/// The body, generic over walk and element; the tile is the implementor.
pub trait Body: Tile {
    /// # Safety
    /// `p` describes live device memory and the launch has this tile's geometry.
    unsafe fn run<W: Walk, E: Elem>(p: &SpmmParams);
}

/// Accumulators of one lane.
type Acc<E, const VEC: usize, const REP: usize> = [[<E as Elem>::Acc; VEC]; REP];

impl<const LANES: u32, const VEC: usize, const REP: usize, const UNROLL: usize> Body
    for SubWarp<LANES, VEC, REP, UNROLL>
{
    #[inline(always)]
    unsafe fn run<W: Walk, E: Elem>(p: &SpmmParams) {
        let lane = gpu::thread() % LANES;
        let index = gpu::block_x() * Self::ITEMS + gpu::thread() / LANES;
        if index >= p.item_count {
            return;
        }
        let members = (u32::MAX >> (32 - LANES)) << (gpu::thread() % 32 / LANES * LANES);
        let [row, start, len, slot] = global::load_v4_stream(p.items + index as u64 * 16, true);
        let column = gpu::block_y() * Self::COLUMNS + lane * VEC as u32;
        let mut acc = gather::<W, E, LANES, VEC, REP, UNROLL>(p, start, len, lane, column, members);
        if slot != WHOLE_ROW && !carry::<E, LANES, VEC, REP>(p, slot, lane, column, members, &mut acc) {
            return;
        }
        let bias = row_bias::<E>(p, row);
        unroll!(r < REP, {
            finish::<E, VEC>(p, row, column + r as u32 * LANES * VEC as u32, bias, acc[r]);
        });
    }
}

/// Sum over the item's entries of value x row of B, in entry order.
#[inline(always)]
fn gather<W: Walk, E: Elem, const LANES: u32, const VEC: usize, const REP: usize, const UNROLL: usize>(
    p: &SpmmParams,
    start: u32,
    len: u32,
    lane: u32,
    column: u32,
    members: u32,
) -> Acc<E, VEC, REP> {
    let mut acc = [[E::ZERO; VEC]; REP];
    let b = p.b + column as u64 * E::BYTES as u64;
    let step = W::batch_len::<LANES, UNROLL>();
    let mut next = W::fetch::<E, LANES, UNROLL>(p.columns, p.values, start, len, lane);
    let mut done = 0;
    while done < len {
        let batch = next;
        let ahead = if len - done > step { len - done - step } else { 0 };
        next = W::fetch::<E, LANES, UNROLL>(p.columns, p.values, start + done + step, ahead, lane);
        let mut j = 0;
        loop {
            burst::<W, E, LANES, VEC, REP, UNROLL>(p, &batch, (b, column), j, (len - done, members), &mut acc);
            j += UNROLL as u32;
            // The walk's batch is one burst: `j` stays a constant and the batch in registers.
            if W::ONE_BURST || j >= step || done + j >= len {
                break;
            }
        }
        done += step;
    }
    acc
}

/// Gathers entries `j..j + UNROLL` of a batch: first all loads, then the arithmetic.
#[inline(always)]
fn burst<W: Walk, E: Elem, const LANES: u32, const VEC: usize, const REP: usize, const UNROLL: usize>(
    p: &SpmmParams,
    batch: &W::Batch<E>,
    (b, column): (u64, u32),
    j: u32,
    (left, members): (u32, u32),
    acc: &mut Acc<E, VEC, REP>,
) {
    let mut raw = [[[0u32; 4]; REP]; UNROLL];
    let mut value = [E::ZERO; UNROLL];
    unroll!(u < UNROLL, {
        let (col, v) = W::entry::<E, LANES>(batch, j + u as u32, members);
        let exists = j + (u as u32) < left;
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
}

/// Leaves the partial sum of a split row. True for the segment that arrives last: its accumulators
/// then hold the row's sum, added in slot order.
#[inline(always)]
fn carry<E: Elem, const LANES: u32, const VEC: usize, const REP: usize>(
    p: &SpmmParams,
    slot: u32,
    lane: u32,
    column: u32,
    members: u32,
    acc: &mut Acc<E, VEC, REP>,
) -> bool {
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
