//! All rows of B in shared memory. No tile is ever given back, so a warp may be anywhere along k: the host deals slices to
//! clusters of thread blocks, and cuts what a cluster has into equal shares of its warps. Slices that a cut goes through are
//! joined at the end, in order: first in each thread block, then across those of the cluster.

use super::out::{is_plain, leave_row, put, put_plain};
use super::{Acc, Body, Chunk, PIECES, STAMPS, Step, stamp};
use crate::abi::*;
use crate::device::elem::Elem;
use crate::device::gpu;
use crate::device::ptx::{barrier, bulk, cluster, copy, global, grid, warp};

/// A piece, and its chunks on their way: the next two.
#[derive(Clone, Copy)]
struct Ahead {
    piece: StagedPiece,
    chunks: (u32, Chunk, Chunk),
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
        leave_row(
            acc,
            Self::sums(own) + gpu::thread() % 32 * Self::SUMS as u32,
        );
    }

    /// Where four sums of row `local` of a slice are, for this lane.
    #[inline(always)]
    fn four(local: u32) -> u32 {
        local * Self::SUMS as u32 + gpu::thread() % ACROSS * 16
    }

    /// Makes the barriers of the tiles, and the row of zeros. Every warp makes its own: one warp makes one after the other,
    /// whichever of its lanes ask for it. Before any load: what makes them visible waits for what is under way.
    #[inline(always)]
    fn set_up(p: &StagedParams) {
        let thread = gpu::thread();
        if thread % 32 == 0 {
            let mut tile = thread / 32;
            while tile < p.tiles {
                barrier::init(Self::full(tile), 1);
                tile += WARPS;
            }
            barrier::init_fence();
        }
        let zeros = thread.wrapping_sub(Self::THREADS - STAGED_ROW as u32 / 16);
        if zeros < STAGED_ROW as u32 / 16 {
            copy::store_shared_v4(copy::arena() + Self::ZEROS as u32 + zeros * 16, [0; 4]);
        }
    }

    /// Starts the copies of the tiles, each by the thread that made its barrier.
    #[inline(always)]
    fn start(p: &StagedParams, at: u64) {
        let thread = gpu::thread();
        if thread % 32 == 0 {
            let column = gpu::block_y() * Self::COLUMNS;
            let mut tile = thread / 32;
            while tile < p.tiles {
                let full = Self::full(tile);
                barrier::arrive_expect(full, STAGED_TILE as u32);
                let to = copy::arena() + tile * STAGED_TILE as u32;
                bulk::load(to, at, column, tile * K_TILE as u32, full);
                tile += WARPS;
            }
        }
    }

    /// Starts the copies of what the end needs: this thread block's span, and its joins with their rows.
    #[inline(always)]
    fn prepare_joins(p: &StagedParams, [first, count, before, behind]: [u32; 4]) {
        let thread = gpu::thread();
        if thread == 0 {
            let to = copy::arena() + Self::SPAN as u32;
            copy::store_shared_v4(to, [first, count, before, behind]);
        }
        const PARTS: u32 = size_of::<StagedJoin>() as u32 / 16;
        if thread < count * PARTS {
            let from = p.joins + (first * PARTS + thread) as u64 * 16;
            copy::copy_async_16(copy::arena() + Self::JOINS as u32 + thread * 16, from, 16);
        }
    }

    /// Begins a piece: its chunks, the numbers of its rows, and the piece at `after`, if that is before `end`.
    #[inline(always)]
    fn begin<E: Elem>(
        p: &StagedParams,
        piece: StagedPiece,
        [after, end]: [u32; 2],
        early: bool,
    ) -> Ahead {
        let lane = gpu::thread() % 32;
        let rows = p.rows + (piece.slice as u64 * SLICE as u64 + lane as u64 * 4) * 4;
        let behind = lane == Self::ROW_LANES;
        let from = if behind {
            p.pieces + after as u64 * 16
        } else {
            rows
        };
        if lane < Self::ROW_LANES || behind && after < end {
            copy::copy_async_16(Self::beside(after) + lane * 16, from, 16);
        }
        let chunks = Chunk::begin::<E>(p, [piece.first, piece.end], 1, early);
        Ahead { piece, chunks }
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
        let (mut chunk, mut next, mut later) = ahead.chunks;
        let end = ahead.piece.end;
        let mut acc = [[0.0f32; 4]; PIECES];
        // The first may be one before the piece, at -1.
        while (chunk as i32) < end as i32 {
            let now = next;
            next = later;
            let after = chunk.wrapping_add(2);
            if after < end {
                later = Chunk::load::<E>(p, after, lane, true);
            }
            let [first, tiles] = now.window();
            Self::wait_for(have, tiles);
            let base = first * K_TILE as u32;
            let at = |i: usize| Step::in_ring::<E>(&now, i, own, base, Self::ZEROS as u32);
            Step::chunk::<E>(at, &mut acc);
            chunk = chunk.wrapping_add(1);
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
    fn write<E: Elem<Acc = f32>, const PLAIN: bool>(p: &StagedParams, rows: u32, acc: &Acc) {
        let (lane, own) = (gpu::thread() % 32, Self::sums(true));
        Self::leave(acc, true);
        warp::sync_lanes(u32::MAX);
        let sum = |local| copy::load_shared_v4(own + Self::four(local)).map(f32::from_bits);
        let first = lane / ACROSS;
        if PLAIN {
            let mut sums = [[0.0; 4]; UNITS as usize];
            unroll!(i < UNITS as usize, {
                sums[i] = sum(first + i as u32 * UNIT_ROWS);
            });
            Self::put_plain::<E, { UNITS as usize }>(p, rows, first, &sums);
        } else {
            let mut local = first;
            while local < SLICE as u32 {
                Self::put_one::<E>(p, rows, local, sum(local));
                local += UNIT_ROWS;
            }
        }
        warp::sync_lanes(u32::MAX);
    }

    /// This lane's first column of C.
    #[inline(always)]
    fn column() -> u32 {
        gpu::block_y() * STAGED_COLUMNS + gpu::thread() % ACROSS * 4
    }

    /// Finishes four sums of row `local` of a slice, whose numbers of rows lie at `rows`.
    #[inline(always)]
    fn put_one<E: Elem<Acc = f32>>(p: &StagedParams, rows: u32, local: u32, sum: [f32; 4]) {
        let row = copy::load_shared_b32(rows + local * 4);
        put::<E>(p, row, Self::column(), sum);
    }

    /// The same of several units, where nothing but a factor is due.
    #[inline(always)]
    fn put_plain<E: Elem<Acc = f32>, const N: usize>(
        p: &StagedParams,
        rows: u32,
        local: u32,
        sums: &[[f32; 4]; N],
    ) {
        let mut to = [0; N];
        unroll!(i < N, {
            to[i] = copy::load_shared_b32(rows + (local + i as u32 * UNIT_ROWS) * 4);
        });
        unroll!(i < N, {
            put_plain::<E>(p, to[i], Self::column(), sums[i]);
        });
    }

    /// Adds the sums that several warps of this thread block have of the slice of a join, in order: this lane's four of row `local`
    /// and of the `N - 1` units behind it.
    #[inline(always)]
    fn added<E: Elem<Acc = f32>, const N: usize>(join: u32, local: u32) -> [[f32; 4]; N] {
        let [warp, warps, end, _] = copy::load_shared_v4(join);
        let within = copy::arena() + Self::four(local);
        let mut sums = [[0.0f32; 4]; N];
        let mut other = 0;
        while other < warps {
            let ended = end != 0 && other + 1 == warps;
            let region = if ended { Self::ENDS as u32 } else { 0 };
            let from = within + region + (warp + other) * Self::SLICE_SUMS as u32;
            let mut raw = [[0; 4]; N];
            unroll!(i < N, {
                raw[i] = copy::load_shared_v4(from + i as u32 * UNIT_ROWS * Self::SUMS as u32);
            });
            unroll!(i < N, {
                unroll!(j < 4, {
                    sums[i][j] = E::add(sums[i][j], f32::from_bits(raw[i][j]));
                });
            });
            other += 1;
        }
        sums
    }

    /// Leaves this thread block's sums of slices that others have parts of, the first of its joins and the last, for
    /// [`Self::join_cluster`].
    #[inline(always)]
    fn join_crossing<E: Elem<Acc = f32>>(joins: u32, crossing: [u32; 2]) {
        let (warp, lane) = (gpu::thread() / 32, gpu::thread() % 32);
        let which = warp / UNITS;
        if which < 2 && Self::of(which, crossing) != 0 {
            let local = warp % UNITS * UNIT_ROWS + lane / ACROSS;
            let join = Self::join_at(if which == 0 { 0 } else { joins - 1 });
            let [sum] = Self::added::<E, 1>(join, local);
            let to = Self::left(which) + Self::four(local);
            copy::store_shared_v4(to, sum.map(f32::to_bits));
        }
    }

    /// Adds the sums of the slices that several warps have, and none of another thread block: some rows of one for a warp at a time.
    #[inline(always)]
    fn join<E: Elem<Acc = f32>, const PLAIN: bool>(p: &StagedParams, joins: u32, crossing: [u32; 2]) {
        const TOGETHER: u32 = 4;
        let lane = gpu::thread() % 32;
        let first = u32::from(crossing[0] != 0) * (UNITS / TOGETHER);
        let end = (joins - u32::from(crossing[1] != 0)) * (UNITS / TOGETHER);
        let mut part = first + gpu::thread() / 32;
        while part < end {
            let join = Self::join_at(part / (UNITS / TOGETHER));
            let unit = part % (UNITS / TOGETHER) * TOGETHER;
            let local = unit * UNIT_ROWS + lane / ACROSS;
            let rows = join + JOIN_HEAD as u32;
            if PLAIN {
                let sums = Self::added::<E, { TOGETHER as usize }>(join, local);
                Self::put_plain::<E, { TOGETHER as usize }>(p, rows, local, &sums);
            } else {
                let mut i = 0;
                while i < TOGETHER {
                    let local = local + i * UNIT_ROWS;
                    let [sum] = Self::added::<E, 1>(join, local);
                    Self::put_one::<E>(p, rows, local, sum);
                    i += 1;
                }
            }
            part += WARPS;
        }
    }

    #[inline(always)]
    fn of(which: u32, crossing: [u32; 2]) -> u32 {
        if which == 0 { crossing[0] } else { crossing[1] }
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
    fn join_cluster<E: Elem<Acc = f32>, const PLAIN: bool>(p: &StagedParams, joins: u32, crossing: [u32; 2]) {
        let (warp, lane) = (gpu::thread() / 32, gpu::thread() % 32);
        let (which, unit) = (warp / UNITS, warp % UNITS);
        if which < 2 {
            let word = Self::of(which, crossing);
            let [first, blocks, own] = [word & 0xff, word >> 8 & 0xff, word >> 16];
            if blocks > 0 && unit % blocks == own {
                let local = unit * UNIT_ROWS + lane / ACROSS;
                let mut raw = [[0u32; 4]; MAX_CLUSTER];
                unroll!(i < MAX_CLUSTER, {
                    if (i as u32) < blocks {
                        let from = Self::left(u32::from(i == 0)) + Self::four(local);
                        raw[i] = cluster::load_v4(cluster::place(from, first + i as u32));
                    }
                });
                let mut sum = [0.0f32; 4];
                unroll!(i < MAX_CLUSTER, {
                    if (i as u32) < blocks {
                        unroll!(j < 4, {
                            sum[j] = E::add(sum[j], f32::from_bits(raw[i][j]));
                        });
                    }
                });
                let join = Self::join_at(if which == 0 { 0 } else { joins - 1 });
                if PLAIN {
                    Self::put_plain::<E, 1>(p, join + JOIN_HEAD as u32, local, &[sum]);
                } else {
                    Self::put_one::<E>(p, join + JOIN_HEAD as u32, local, sum);
                }
            }
        }
    }
}

impl<const WARPS: u32> Body for Resident<WARPS> {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: Elem<Acc = f32>>(p: &StagedParams, at: u64) {
        // As in the other body.
        if is_plain(p) {
            Self::run_as::<E, true>(p, at);
        } else {
            Self::run_as::<E, false>(p, at);
        }
    }
}

impl<const WARPS: u32> Resident<WARPS> {
    #[inline(always)]
    fn run_as<E: Elem<Acc = f32>, const PLAIN: bool>(p: &StagedParams, at: u64) {
        stamp(p, 0);
        Self::set_up(p);
        // What belongs to the plan is read while the kernel ahead ends.
        let own = gpu::block_x() * WARPS + gpu::thread() / 32;
        let first = global::load_v4(p.pieces + own as u64 * 16, true);
        let [mut after, end] = global::load_v2(p.others + own as u64 * 8, true);
        let span = global::load_v4(p.spans + gpu::block_x() as u64 * 16, true);
        grid::let_next_start();
        grid::wait_for_previous();
        Self::start(p, at);
        let mut ahead = Self::begin::<E>(
            p,
            piece_of(first),
            [after, end],
            gpu::thread() / 32 < Chunk::FIRST_WARPS,
        );
        Self::prepare_joins(p, span);
        stamp(p, 1);
        gpu::sync_threads();
        let mut have = 0;
        if STAMPS && p.flags >> 31 != 0 {
            Self::wait_for(&mut have, p.tiles);
            stamp(p, 2);
            if ahead.chunks.2.window == 77777 {
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
            ahead = Self::begin::<E>(p, piece_of(next), [after, end], false);
            if kind == PIECE_END {
                Self::leave(&acc, true);
            } else {
                Self::write::<E, PLAIN>(p, beside, &acc);
            }
        };
        stamp(p, 4);
        let whole = ahead.piece.kind == PIECE_WHOLE;
        // No copy may be under way when the thread block ends, or when the sums take the place of B.
        Self::wait_for(&mut have, p.tiles);
        gpu::sync_threads();
        stamp(p, 5);
        let span = copy::load_shared_v4(copy::arena() + Self::SPAN as u32);
        let (joins, crossing) = (span[1], [span[2], span[3]]);
        let wide = cluster::size() > 1;
        if joins > 0 {
            if ahead.piece.kind == PIECE_OPEN {
                Self::leave(&acc, false);
            }
            gpu::sync_threads();
        }
        if wide {
            Self::join_crossing::<E>(joins, crossing);
            // Before anything goes to C: it waits for what is under way.
            cluster::arrive();
        }
        if whole {
            Self::write::<E, PLAIN>(p, Self::beside(after), &acc);
        }
        Self::join::<E, PLAIN>(p, joins, crossing);
        stamp(p, 6);
        if wide {
            cluster::wait();
            Self::join_cluster::<E, PLAIN>(p, joins, crossing);
            // Others read what is here; nothing that is written here matters to them.
            cluster::arrive_relaxed();
            cluster::wait();
        }
        stamp(p, 7);
    }
}
