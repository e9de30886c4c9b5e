//! All rows of B in shared memory. No tile is ever given back, so a warp may be anywhere along k: the host deals slices to
//! thread blocks, and cuts what a thread block has into equal shares of its warps. Slices that a cut goes through are joined at
//! the end, in order.

use super::out::{leave_row, put, row_of};
use super::{Acc, Body, Chunk, PIECES, Step};
use crate::abi::*;
use crate::device::elem::Elem;
use crate::device::gpu;
use crate::device::ptx::{barrier, bulk, copy, global, warp};

/// Chunks of a piece on their way: the next two.
#[derive(Clone, Copy)]
struct Ahead {
    piece: StagedPiece,
    next: Chunk,
    later: Chunk,
}

impl Ahead {
    #[inline(always)]
    fn of<E: Elem<Acc = f32>>(p: &StagedParams, piece: StagedPiece) -> Ahead {
        let fetch = |c: u32| Chunk::load::<E>(p, c, gpu::thread() % 32, c < piece.end);
        Ahead {
            piece,
            next: fetch(piece.first),
            later: fetch(piece.first + 1),
        }
    }
}

/// Some rows of a slice that several warps have sums of.
#[derive(Clone, Copy)]
struct Unit {
    warp: u32,
    warps: u32,
    end: u32,
    /// The lane's row of C.
    row: u32,
}

#[inline(always)]
fn piece(p: &StagedParams, at: u32, there: bool) -> StagedPiece {
    let [first, end, slice, kind] = global::load_v4(p.pieces + at as u64 * 16, there);
    StagedPiece {
        first,
        end,
        slice,
        kind,
    }
}

impl<const WARPS: u32> Resident<WARPS> {
    /// Barrier that says: the tile has arrived.
    #[inline(always)]
    fn full(tile: u32) -> u32 {
        copy::arena() + Self::BARRIERS as u32 + tile * 8
    }

    /// Starts the copies of all tiles, a lane of the first warp each. The caller lets the others know of the barriers.
    #[inline(always)]
    fn start(p: &StagedParams, at: u64) {
        let thread = gpu::thread();
        if thread < p.tiles {
            let (full, column) = (Self::full(thread), gpu::block_y() * Self::COLUMNS);
            barrier::init(full, 1);
            barrier::init_fence();
            barrier::arrive_expect(full, STAGED_TILE as u32);
            let to = copy::arena() + thread * STAGED_TILE as u32;
            bulk::load(to, at, column, thread * K_TILE as u32, full);
        }
        let zeros = thread.wrapping_sub(Self::THREADS - STAGED_ROW as u32 / 16);
        if zeros < STAGED_ROW as u32 / 16 {
            copy::store_shared_v4(copy::arena() + Self::ZEROS as u32 + zeros * 16, [0; 4]);
        }
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
            later = Chunk::load::<E>(p, chunk + 2, lane, chunk + 2 < piece.end);
            while *have < now.window[1] {
                barrier::wait(Self::full(*have), 0);
                *have += 1;
            }
            let base = now.window[0] * K_TILE as u32;
            let at = |i: usize| Step::in_ring::<E>(&now, i, own, base, Self::ZEROS as u32);
            Step::chunk::<E>(at, &mut acc);
            chunk += 1;
        }
        acc
    }

    /// Finishes a whole slice: some rows at a time are turned from a lane each to neighbouring lanes.
    #[inline(always)]
    fn write<E: Elem<Acc = f32>>(p: &StagedParams, slice: u32, acc: &Acc) {
        let (lane, across) = (gpu::thread() % 32, STAGED_COLUMNS / 4);
        let own = copy::arena() + Self::TURNS as u32 + gpu::thread() / 32 * Self::TURNED as u32;
        let row_of_lane = row_of(p, slice, lane, slice < p.slices);
        let mut first = 0;
        while first < SLICE as u32 {
            let local = lane.wrapping_sub(first);
            if local < TURNED_ROWS as u32 {
                leave_row(acc, own + local * Self::SUMS as u32);
            }
            warp::sync_lanes(u32::MAX);
            let mut row = lane / across;
            while row < TURNED_ROWS as u32 {
                let from = own + row * Self::SUMS as u32 + lane % across * 16;
                let sum = copy::load_shared_v4(from).map(f32::from_bits);
                let column = gpu::block_y() * STAGED_COLUMNS + lane % across * 4;
                let to = warp::shuffle::<32>(row_of_lane, first + row, u32::MAX);
                put::<E>(p, to, column, sum);
                row += 32 / across;
            }
            warp::sync_lanes(u32::MAX);
            first += TURNED_ROWS as u32;
        }
    }

    /// Rows that a warp adds at a time, and how often that is in a slice.
    const UNIT_ROWS: u32 = 128 / STAGED_COLUMNS;
    const UNITS: u32 = SLICE as u32 / Self::UNIT_ROWS;

    /// What unit `unit` of the joins of a group is.
    #[inline(always)]
    fn unit(p: &StagedParams, [first, count]: [u32; 2], unit: u32) -> Unit {
        let there = unit < count * Self::UNITS;
        let at = p.joins + (first + unit / Self::UNITS) as u64 * 16;
        let [slice, warp, warps, end] = global::load_v4(at, there);
        let local =
            unit % Self::UNITS * Self::UNIT_ROWS + gpu::thread() % 32 / (STAGED_COLUMNS / 4);
        let row = row_of(p, slice, local, there);
        Unit {
            warp,
            warps,
            end,
            row,
        }
    }

    /// Adds the sums of the slices that several warps have, in order: some rows of one for a warp at a time.
    #[inline(always)]
    fn join<E: Elem<Acc = f32>>(p: &StagedParams, span: [u32; 2], mut next: Unit) {
        let (lane, across) = (gpu::thread() % 32, STAGED_COLUMNS / 4);
        let mut unit = gpu::thread() / 32;
        while unit < span[1] * Self::UNITS {
            let Unit {
                warp,
                warps,
                end,
                row,
            } = next;
            let local = unit % Self::UNITS * Self::UNIT_ROWS + lane / across;
            unit += WARPS;
            next = Self::unit(p, span, unit);
            let within = copy::arena() + local * Self::SUMS as u32 + lane % across * 16;
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
            let column = gpu::block_y() * STAGED_COLUMNS + lane % across * 4;
            put::<E>(p, row, column, sum);
        }
    }
}

impl<const WARPS: u32> Body for Resident<WARPS> {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: Elem<Acc = f32>>(p: &StagedParams, at: u64) {
        let (warp, lane) = (gpu::thread() / 32, gpu::thread() % 32);
        Self::start(p, at);
        let own = gpu::block_x() * WARPS + warp;
        let mut ahead = Ahead::of::<E>(p, piece(p, own, true));
        let [other, others] = global::load_v2(p.others + own as u64 * 8, true);
        let span = global::load_v2(p.spans + gpu::block_x() as u64 * 8, true);
        gpu::sync_threads();
        let (mut have, mut done) = (0, 0);
        let sums = |slot: u32| {
            copy::arena() + slot + warp * Self::SLICE_SUMS as u32 + lane * Self::SUMS as u32
        };
        let (last, acc) = loop {
            let after = piece(p, other + done, done < others);
            let acc = Self::multiply::<E>(p, ahead, &mut have);
            let this = ahead.piece;
            if done == others {
                break (this, acc);
            }
            done += 1;
            ahead = Ahead::of::<E>(p, after);
            if this.kind == PIECE_END {
                leave_row(&acc, sums(Self::ENDS as u32));
            } else {
                Self::write::<E>(p, this.slice, &acc);
            }
        };
        if last.kind == PIECE_WHOLE {
            Self::write::<E>(p, last.slice, &acc);
        }
        // No copy may be under way when the thread block ends, or when the sums take the place of B.
        while have < p.tiles {
            barrier::wait(Self::full(have), 0);
            have += 1;
        }
        if span[1] > 0 {
            let unit = Self::unit(p, span, warp);
            gpu::sync_threads();
            if last.kind == PIECE_OPEN {
                leave_row(&acc, sums(0));
            }
            gpu::sync_threads();
            Self::join::<E>(p, span, unit);
        }
    }
}
