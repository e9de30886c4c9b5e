//! All rows of B in shared memory. No tile is ever given back, so a warp may be anywhere along k: the host deals slices to
//! clusters of thread blocks, and cuts what a cluster has into equal shares of its warps. Slices that a cut goes through are
//! joined at the end, in order: first in each thread block, then across those of the cluster.

use super::out::{leave_row, put};
use super::{Acc, Body, Chunk, PIECES, Step, stamp};
use crate::abi::*;
use crate::device::elem::Elem;
use crate::device::gpu;
use crate::device::ptx::{barrier, bulk, cluster, copy, global, grid, warp};

/// A piece, and its chunks on their way: the next two.
#[derive(Clone, Copy)]
struct Ahead {
    piece: StagedPiece,
    next: Chunk,
    later: Chunk,
}

#[inline(always)]
fn piece_of([first, end, slice, kind]: [u32; 4]) -> StagedPiece {
    StagedPiece {
        first,
        end,
        slice,
        kind,
    }
}

/// Lanes that hold a row of sums, four columns each.
const ACROSS: u32 = STAGED_COLUMNS / 4;
/// Rows that a warp holds so.
const UNIT_ROWS: u32 = 32 / ACROSS;
/// How often that is in a slice.
const UNITS: u32 = SLICE as u32 / UNIT_ROWS;

impl<const WARPS: u32> Resident<WARPS> {
    /// Barrier that says: the tile has arrived.
    #[inline(always)]
    fn full(tile: u32) -> u32 {
        copy::arena() + Self::BARRIERS as u32 + tile * 8
    }

    /// Where this warp leaves sums, all lanes of a slice: in the place of B, or in its own.
    #[inline(always)]
    fn sums(own: bool) -> u32 {
        let region = if own { Self::ENDS as u32 } else { 0 };
        copy::arena() + region + gpu::thread() / 32 * Self::SLICE_SUMS as u32
    }

    /// Leaves a slice's sums there.
    #[inline(always)]
    fn leave(acc: &Acc, own: bool) {
        leave_row(acc, Self::sums(own) + gpu::thread() % 32 * Self::SUMS as u32);
    }

    /// Where four sums of row `local` of a slice are, for this lane.
    #[inline(always)]
    fn four(local: u32) -> u32 {
        local * Self::SUMS as u32 + gpu::thread() % ACROSS * 16
    }

    /// Makes the barriers of the tiles, a lane of the first warp each, and the row of zeros.
    #[inline(always)]
    fn set_up(p: &StagedParams) {
        let thread = gpu::thread();
        if thread < p.tiles {
            barrier::init(Self::full(thread), 1);
            barrier::init_fence();
        }
        let zeros = thread.wrapping_sub(Self::THREADS - STAGED_ROW as u32 / 16);
        if zeros < STAGED_ROW as u32 / 16 {
            copy::store_shared_v4(copy::arena() + Self::ZEROS as u32 + zeros * 16, [0; 4]);
        }
    }

    /// Starts the copies of all tiles, a lane of the first warp each, which made their barriers.
    #[inline(always)]
    fn start(p: &StagedParams, at: u64) {
        let thread = gpu::thread();
        if thread < p.tiles {
            let (full, column) = (Self::full(thread), gpu::block_y() * Self::COLUMNS);
            barrier::arrive_expect(full, STAGED_TILE as u32);
            let to = copy::arena() + thread * STAGED_TILE as u32;
            bulk::load(to, at, column, thread * K_TILE as u32, full);
        }
    }

    /// Starts the copies of what the end needs: this thread block's span, and its joins with their rows.
    #[inline(always)]
    fn prepare_joins(p: &StagedParams) {
        let (thread, at) = (gpu::thread(), p.spans + gpu::block_x() as u64 * 16);
        let to = copy::arena() + Self::SPAN as u32;
        let [first, count] = global::load_v2(at, true);
        if thread == 0 {
            copy::copy_async_16(to, at, 16);
        }
        const PARTS: u32 = size_of::<StagedJoin>() as u32 / 16;
        if thread < count * PARTS {
            let from = p.joins + (first * PARTS + thread) as u64 * 16;
            copy::copy_async_16(copy::arena() + Self::JOINS as u32 + thread * 16, from, 16);
        }
    }

    /// Begins a piece: its chunks, the numbers of its rows, and the piece at `after`, if there is one.
    #[inline(always)]
    fn begin<E: Elem>(p: &StagedParams, piece: StagedPiece, after: u32, there: bool) -> Ahead {
        let lane = gpu::thread() % 32;
        let rows = p.rows + (piece.slice as u64 * SLICE as u64 + lane as u64 * 4) * 4;
        let behind = lane == Self::ROW_LANES;
        let from = if behind { p.pieces + after as u64 * 16 } else { rows };
        if lane < Self::ROW_LANES || behind && there {
            copy::copy_async_16(Self::beside(after) + lane * 16, from, 16);
        }
        let fetch = |c: u32| Chunk::load::<E>(p, c, lane, c < piece.end);
        Ahead {
            piece,
            next: fetch(piece.first),
            later: fetch(piece.first + 1),
        }
    }

    /// Lanes that copy the numbers of a slice's rows.
    const ROW_LANES: u32 = SLICE as u32 / 4;

    /// Where this warp's numbers of rows lie, and behind them the piece at `after`; those of a piece and of the next take turns.
    #[inline(always)]
    fn beside(after: u32) -> u32 {
        let place = gpu::thread() / 32 * 2 + after % 2;
        copy::arena() + (Self::BESIDE + place as usize * Self::PIECE) as u32
    }

    /// The sums of a piece; `have` tiles are known to be there.
    #[inline(always)]
    fn multiply<E: Elem<Acc = f32>>(p: &StagedParams, ahead: Ahead, have: &mut u32) -> Acc {
        let lane = gpu::thread() % 32;
        let own = copy::arena() + lane % PIECES as u32 * 16;
        let Ahead {
            piece,
            mut next,
            mut later,
        } = ahead;
        let mut acc = [[0.0f32; 4]; PIECES];
        let mut chunk = piece.first;
        while chunk < piece.end {
            let now = next;
            next = later;
            if chunk + 2 < piece.end {
                later = Chunk::load::<E>(p, chunk + 2, lane, true);
            }
            Self::wait_for(have, now.window[1]);
            let base = now.window[0] * K_TILE as u32;
            let at = |i: usize| Step::in_ring::<E>(&now, i, own, base, Self::ZEROS as u32);
            Step::chunk::<E>(at, &mut acc);
            chunk += 1;
        }
        acc
    }

    /// Waits until `tiles` are there.
    #[inline(always)]
    fn wait_for(have: &mut u32, tiles: u32) {
        while *have < tiles {
            barrier::wait(Self::full(*have), 0);
            *have += 1;
        }
    }

    /// Finishes a whole slice: sums are turned from a lane for each row to neighbouring lanes.
    #[inline(always)]
    fn write<E: Elem<Acc = f32>>(p: &StagedParams, rows: u32, acc: &Acc) {
        let (lane, own) = (gpu::thread() % 32, Self::sums(true));
        Self::leave(acc, true);
        warp::sync_lanes(u32::MAX);
        let mut local = lane / ACROSS;
        while local < SLICE as u32 {
            let sum = copy::load_shared_v4(own + Self::four(local));
            Self::put::<E>(p, rows, local, sum.map(f32::from_bits));
            local += UNIT_ROWS;
        }
        warp::sync_lanes(u32::MAX);
    }

    /// Finishes four sums of row `local` of a slice, whose numbers of rows lie at `rows`.
    #[inline(always)]
    fn put<E: Elem<Acc = f32>>(p: &StagedParams, rows: u32, local: u32, sum: [f32; 4]) {
        let column = gpu::block_y() * STAGED_COLUMNS + gpu::thread() % ACROSS * 4;
        put::<E>(p, copy::load_shared_b32(rows + local * 4), column, sum);
    }

    /// Adds the sums of the slices that several warps of this thread block have, in order: some rows of one for a warp at a
    /// time. A slice that is not all here is left for [`Self::join_cluster`].
    #[inline(always)]
    fn join<E: Elem<Acc = f32>>(p: &StagedParams, joins: u32) {
        let lane = gpu::thread() % 32;
        let mut unit = gpu::thread() / 32;
        while unit < joins * UNITS {
            let join = Self::join_at(unit / UNITS);
            let [warp, warps, end, left] = copy::load_shared_v4(join);
            let local = unit % UNITS * UNIT_ROWS + lane / ACROSS;
            unit += WARPS;
            let within = copy::arena() + Self::four(local);
            let mut sum = [0.0f32; 4];
            let mut other = 0;
            while other < warps {
                let ended = end != 0 && other + 1 == warps;
                let region = if ended { Self::ENDS as u32 } else { 0 };
                let from = within + region + (warp + other) * Self::SLICE_SUMS as u32;
                let raw = copy::load_shared_v4(from);
                unroll!(j < 4, {
                    sum[j] = E::add(sum[j], f32::from_bits(raw[j]));
                });
                other += 1;
            }
            if left == 0 {
                Self::put::<E>(p, join + JOIN_HEAD as u32, local, sum);
            } else {
                let to = Self::left(left - 1) + Self::four(local);
                copy::store_shared_v4(to, sum.map(f32::to_bits));
            }
        }
    }

    #[inline(always)]
    fn join_at(join: u32) -> u32 {
        copy::arena() + Self::JOINS as u32 + join * size_of::<StagedJoin>() as u32
    }

    /// Where a thread block leaves its sums of a slice that others have parts of: that which began before it, and that which
    /// goes on behind it.
    #[inline(always)]
    fn left(which: u32) -> u32 {
        copy::arena() + (WARPS + which) * Self::SLICE_SUMS as u32
    }

    /// Adds the sums of slices that several thread blocks of the cluster have, in order; each of them finishes some rows.
    #[inline(always)]
    fn join_cluster<E: Elem<Acc = f32>>(p: &StagedParams) {
        let (warp, lane) = (gpu::thread() / 32, gpu::thread() % 32);
        let (which, unit) = (warp / UNITS, warp % UNITS);
        if which < 2 {
            let span = copy::arena() + Self::SPAN as u32;
            let count = copy::load_shared_b32(span + 4);
            let word = copy::load_shared_b32(span + 8 + which * 4);
            let [first, blocks, own] = [word & 0xff, word >> 8 & 0xff, word >> 16];
            if blocks > 0 && unit % blocks == own {
                let local = unit * UNIT_ROWS + lane / ACROSS;
                let mut sum = [0.0f32; 4];
                let mut block = 0;
                while block < blocks {
                    let from = Self::left(u32::from(block == 0)) + Self::four(local);
                    let raw = cluster::load_v4(cluster::place(from, first + block));
                    unroll!(j < 4, {
                        sum[j] = E::add(sum[j], f32::from_bits(raw[j]));
                    });
                    block += 1;
                }
                let join = Self::join_at(if which == 0 { 0 } else { count - 1 });
                Self::put::<E>(p, join + JOIN_HEAD as u32, local, sum);
            }
        }
    }
}

impl<const WARPS: u32> Body for Resident<WARPS> {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: Elem<Acc = f32>>(p: &StagedParams, at: u64) {
        stamp(p, 0);
        // What belongs to the plan is read while the kernel ahead ends.
        let own = gpu::block_x() * WARPS + gpu::thread() / 32;
        let first = piece_of(global::load_v4(p.pieces + own as u64 * 16, true));
        let [mut after, end] = global::load_v2(p.others + own as u64 * 8, true);
        Self::set_up(p);
        grid::let_next_start();
        grid::wait_for_previous();
        Self::start(p, at);
        Self::prepare_joins(p);
        let mut ahead = Self::begin::<E>(p, first, after, after < end);
        stamp(p, 1);
        gpu::sync_threads();
        let mut have = 0;
        if p.flags >> 31 != 0 {
            Self::wait_for(&mut have, p.tiles);
            stamp(p, 2);
            if ahead.next.window[0] == 77777 {
                stamp(p, 7);
            }
            stamp(p, 3);
        }
        let acc = loop {
            let acc = Self::multiply::<E>(p, ahead, &mut have);
            copy::copy_wait_all();
            warp::sync_lanes(u32::MAX);
            let beside = Self::beside(after);
            if after == end {
                break acc;
            }
            let kind = ahead.piece.kind;
            let next = copy::load_shared_v4(beside + Self::ROW_LANES * 16);
            after += 1;
            ahead = Self::begin::<E>(p, piece_of(next), after, after < end);
            if kind == PIECE_END {
                Self::leave(&acc, true);
            } else {
                Self::write::<E>(p, beside, &acc);
            }
        };
        stamp(p, 4);
        if ahead.piece.kind == PIECE_WHOLE {
            Self::write::<E>(p, Self::beside(after), &acc);
        }
        // No copy may be under way when the thread block ends, or when the sums take the place of B.
        Self::wait_for(&mut have, p.tiles);
        gpu::sync_threads();
        stamp(p, 5);
        let joins = copy::load_shared_b32(copy::arena() + Self::SPAN as u32 + 4);
        if joins > 0 {
            if ahead.piece.kind == PIECE_OPEN {
                Self::leave(&acc, false);
            }
            gpu::sync_threads();
            Self::join::<E>(p, joins);
        }
        stamp(p, 6);
        if cluster::size() > 1 {
            cluster::arrive();
            cluster::wait();
            Self::join_cluster::<E>(p);
            // Others read what is here.
            cluster::arrive();
            cluster::wait();
        }
        stamp(p, 7);
    }
}
