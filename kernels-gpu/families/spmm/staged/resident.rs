//! All rows of B in shared memory. No tile is ever released, so a warp may be anywhere along k. The host distributes
//! slices to clusters of thread blocks, and splits those of a cluster into equal shares of its warps. Split slices are
//! joined at the end, in order: first in each thread block, then across those of the cluster.

use super::out::{is_plain, leave_row, put, put_plain};
use super::{Acc, Chunk, PIECES, Step};
use crate::device::prelude::*;
use crate::families::spmm::abi::*;

/// A piece and its next two chunks, which are loading.
#[derive(Clone, Copy)]
struct Ahead {
    piece: StagedPiece,
    chunks: [Chunk; 2],
}

#[inline(always)]
fn piece_of([first, end, slice, kind]: [u32; 4]) -> StagedPiece {
    StagedPiece { first, end, slice, kind }
}

/// Lanes that hold a row of sums, four columns each.
pub(super) const ACROSS: u32 = STAGED_COLUMNS / 4;
/// Rows of sums that a warp holds at once: a unit.
pub(super) const UNIT_ROWS: u32 = 32 / ACROSS;
/// Units of a slice.
pub(super) const UNITS: u32 = SLICE as u32 / UNIT_ROWS;

impl<const WARPS: u32> Resident<WARPS> {
    #[inline(always)]
    fn full(tile: u32) -> u32 {
        copy::dynamic_shared() + Self::BARRIERS as u32 + tile * 8
    }

    /// Shared address of this warp's sums of a slice: in its own region, or over the tiles of B.
    #[inline(always)]
    fn sums(own: bool) -> u32 {
        let region = if own { Self::ENDS as u32 } else { 0 };
        copy::dynamic_shared() + region + gpu::thread() / 32 * Self::SLICE_SUMS as u32
    }

    /// Stores the sums of a slice there.
    #[inline(always)]
    fn stage_sums(acc: &Acc, own: bool) {
        leave_row(acc, Self::sums(own) + gpu::thread() % 32 * Self::SUMS as u32);
    }

    /// Offset of this lane's four sums of row `local` of a slice.
    #[inline(always)]
    pub(super) fn four(local: u32) -> u32 {
        local * Self::SUMS as u32 + gpu::thread() % ACROSS * 16
    }

    /// Initializes the barriers of the tiles, and the row of zeros. A warp initializes its barriers one after the
    /// other, whichever lanes do it, so all warps share the work. Must precede all loads: the fence that makes the
    /// barriers visible waits for outstanding loads.
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
            copy::st_shared_v4(copy::dynamic_shared() + Self::ZEROS as u32 + zeros * 16, [0; 4]);
        }
    }

    /// Starts the copies of the tiles, each from the thread that initialized its barrier.
    #[inline(always)]
    fn start(p: &StagedParams, at: Maps) {
        let thread = gpu::thread();
        if thread % 32 == 0 {
            let column = gpu::block_y() * Self::COLUMNS;
            let mut tile = thread / 32;
            while tile < p.tiles {
                let full = Self::full(tile);
                barrier::arrive_expect_tx(full, STAGED_TILE as u32);
                let to = copy::dynamic_shared() + tile * STAGED_TILE as u32;
                at.map(0).load_2d(to, [column, tile * K_TILE as u32], full);
                tile += WARPS;
            }
        }
    }

    /// Loads the first chunks of a piece, and starts the copies of its row numbers and, if `after < end`, of the piece
    /// there.
    #[inline(always)]
    fn begin<E: Elem>(p: &StagedParams, piece: StagedPiece, [after, end]: [u32; 2]) -> Ahead {
        let lane = gpu::opaque_thread() % 32;
        let rows = p.rows().at(piece.slice as u64 * SLICE as u64 + lane as u64 * 4).cast();
        let behind = lane == Self::ROW_LANES;
        let from = if behind { p.pieces().at(after) } else { rows };
        if lane < Self::ROW_LANES || behind && after < end {
            from.cp_async_16(Self::beside(after) + lane * 16, 16);
        }
        let chunks = Chunk::two::<E>(p.chunks(), [piece.first, piece.end], 1);
        Ahead { piece, chunks }
    }

    /// Lanes that copy the row numbers of a slice.
    const ROW_LANES: u32 = SLICE as u32 / 4;

    /// Address of this warp's row numbers, which the piece at `after` follows. A piece and the next alternate between
    /// two buffers.
    #[inline(always)]
    fn beside(after: u32) -> u32 {
        let place = gpu::opaque_thread() / 32 * 2 + after % 2;
        copy::dynamic_shared() + (Self::BESIDE + place as usize * Self::PIECE) as u32
    }

    /// Returns the sums of a piece; `have` tiles are known to have arrived.
    #[inline(always)]
    fn multiply<E: Elem<Acc = f32>>(p: &StagedParams, ahead: Ahead, have: &mut u32) -> Acc {
        let lane = gpu::thread() % 32;
        let own = copy::dynamic_shared() + lane % PIECES as u32 * 16;
        let [mut next, mut later] = ahead.chunks;
        let (mut chunk, end) = (ahead.piece.first, ahead.piece.end);
        let mut acc = [[0.0f32; 4]; PIECES];
        while chunk < end {
            let now = next;
            next = later;
            if chunk + 2 < end {
                later = Chunk::load::<E>(p.chunks(), chunk + 2, lane, true);
            }
            let [first, tiles] = now.window();
            Self::wait_for(have, tiles);
            let base = first * K_TILE as u32;
            let at = |i: usize| Step::in_ring::<E>(&now, i, own, base, Self::ZEROS as u32);
            Step::chunk::<E>(at, &mut acc);
            chunk += 1;
        }
        acc
    }

    #[inline(always)]
    fn wait_for(have: &mut u32, tiles: u32) {
        while *have < tiles {
            barrier::wait(Self::full(*have), 0);
            *have += 1;
        }
    }

    /// Applies the epilogue to a whole slice and stores it. Sums move from one lane a row to neighbouring lanes.
    #[inline(always)]
    fn write<E: Elem<Acc = f32>, const PLAIN: bool>(p: &StagedParams, rows: u32, acc: &Acc) {
        let (lane, own) = (gpu::thread() % 32, Self::sums(true));
        Self::stage_sums(acc, true);
        warp::sync(u32::MAX);
        let sum = |local| copy::ld_shared_v4(own + Self::four(local)).map(f32::from_bits);
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
        warp::sync(u32::MAX);
    }

    /// Returns this lane's first column of C.
    #[inline(always)]
    pub(super) fn column() -> u32 {
        gpu::block_y() * STAGED_COLUMNS + gpu::thread() % ACROSS * 4
    }

    /// Applies the epilogue to four sums of row `local` of a slice and stores them. `rows`: address of the row numbers.
    #[inline(always)]
    pub(super) fn put_one<E: Elem<Acc = f32>>(
        p: &StagedParams,
        rows: u32,
        local: u32,
        sum: [f32; 4],
    ) {
        let row = copy::ld_shared_b32(rows + local * 4);
        put::<E>(p, row, Self::column(), sum);
    }

    /// [`Self::put_one`] for `N` units, if only the scalar factor is applied.
    #[inline(always)]
    pub(super) fn put_plain<E: Elem<Acc = f32>, const N: usize>(
        p: &StagedParams,
        rows: u32,
        local: u32,
        sums: &[[f32; 4]; N],
    ) {
        let mut to = [0; N];
        unroll!(i < N, {
            to[i] = copy::ld_shared_b32(rows + (local + i as u32 * UNIT_ROWS) * 4);
        });
        unroll!(i < N, {
            put_plain::<E>(p, to[i], Self::column(), sums[i]);
        });
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>, const WARPS: u32> Kernel<W, E, StagedParams>
    for Resident<WARPS>
{
    #[inline(always)]
    unsafe fn run(p: &StagedParams, at: Maps) {
        // Two instances, for the same reason as in `Staged`.
        if is_plain(p) {
            Self::run_as::<E, true>(p, at);
        } else {
            Self::run_as::<E, false>(p, at);
        }
    }
}

impl<const WARPS: u32> Resident<WARPS> {
    #[inline(always)]
    fn run_as<E: Elem<Acc = f32>, const PLAIN: bool>(p: &StagedParams, at: Maps) {
        Self::set_up(p);
        // The plan's lists are read while the previous kernel ends (PDL).
        let own = gpu::block_x() * WARPS + gpu::thread() / 32;
        let first = p.pieces().at(own).ld();
        let [mut after, end] = p.others().at(own).ld();
        let span = p.spans().at(gpu::block_x()).ld();
        grid::launch_dependents();
        grid::wait_dependency();
        Self::start(p, at);
        let mut ahead = Self::begin::<E>(p, piece_of(first), [after, end]);
        Self::prepare_joins(p, span);
        gpu::sync_threads();
        let mut have = 0;
        let acc = loop {
            let acc = Self::multiply::<E>(p, ahead, &mut have);
            copy::cp_async_wait_all();
            warp::sync(u32::MAX);
            let beside = Self::beside(after);
            if after == end {
                break acc;
            }
            let kind = ahead.piece.kind;
            let next = copy::ld_shared_v4(beside + Self::ROW_LANES * 16);
            after += 1;
            ahead = Self::begin::<E>(p, piece_of(next), [after, end]);
            if kind == PIECE_END {
                Self::stage_sums(&acc, true);
            } else {
                Self::write::<E, PLAIN>(p, beside, &acc);
            }
        };
        // No copy may be outstanding when the thread block ends, or when the sums overwrite B.
        Self::wait_for(&mut have, p.tiles);
        gpu::sync_threads();
        Self::finish::<E, PLAIN>(p, ahead.piece.kind, Self::beside(after), &acc);
    }

    /// Joins and stores the sums of each warp's last piece, which has this `kind`.
    #[inline(always)]
    fn finish<E: Elem<Acc = f32>, const PLAIN: bool>(
        p: &StagedParams,
        kind: u32,
        beside: u32,
        acc: &Acc,
    ) {
        let span = copy::ld_shared_v4(copy::dynamic_shared() + Self::SPAN as u32);
        let (joins, crossing) = (span[1], [span[2], span[3]]);
        let wide = cluster::size() > 1;
        if joins > 0 {
            if kind == PIECE_OPEN {
                Self::stage_sums(acc, false);
            }
            gpu::sync_threads();
        }
        if wide {
            Self::join_crossing::<E>(joins, crossing);
            // Before any store to C, because the arrival waits for outstanding stores.
            cluster::arrive();
        }
        if kind == PIECE_WHOLE {
            Self::write::<E, PLAIN>(p, beside, acc);
        }
        Self::join::<E, PLAIN>(p, joins, crossing);
        if wide {
            cluster::wait();
            Self::join_cluster::<E, PLAIN>(p, joins, crossing);
            // Other thread blocks read this shared memory until here. Nothing is written for them, so no ordering is
            // needed.
            cluster::arrive_relaxed();
            cluster::wait();
        }
    }
}
