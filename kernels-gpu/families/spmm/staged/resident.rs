//! All rows of B in shared memory. No tile is ever released, so a warp may be anywhere along k. The host distributes
//! slices to clusters of thread blocks, and splits those of a cluster into equal shares of its warps. Split slices are
//! joined at the end, in order: first in each thread block, then across those of the cluster.

use super::out::{four, is_plain, put_units, stage_sums};
use super::{ACROSS, Acc, Chunk, UNIT_ROWS, shared, sums};
use crate::device::prelude::*;
use crate::device::stages::share_barriers;
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

/// Units of a slice.
pub(super) const UNITS: u32 = SLICE as u32 / UNIT_ROWS;

impl<const WARPS: u32> Resident<WARPS> {
    #[inline(always)]
    fn full(tile: u32) -> Shared<Mbarrier> {
        shared().bytes(Self::BARRIERS).cast().at(tile)
    }

    /// Returns this warp's sums of a slice in shared memory: in its own region, or over the tiles of B.
    #[inline(always)]
    fn sums(own: bool) -> Shared<u8> {
        let region = if own { Self::ENDS } else { 0 };
        shared().bytes(region).bytes(gpu::thread() / 32 * SLICE_SUMS)
    }

    /// Initializes the barriers of the tiles, and the row of zeros, before any load: see [`share_barriers`].
    #[inline(always)]
    fn set_up(p: &StagedParams) {
        share_barriers(WARPS, p.tiles, |tile| Self::full(tile).init(1));
        let zeros = gpu::thread().wrapping_sub(Self::THREADS - STAGED_ROW / 16);
        if zeros < STAGED_ROW / 16 {
            shared().bytes(Self::ZEROS).cast::<[u32; 4]>().at(zeros).st([0; 4]);
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
                full.arrive_expect_tx(STAGED_TILE);
                let to = shared().bytes(tile * STAGED_TILE);
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
            from.cp_async_16(Self::beside(after).at(lane * 4), 16);
        }
        let chunks = Chunk::two::<E>(p.chunks(), [piece.first, piece.end], 1);
        Ahead { piece, chunks }
    }

    /// Lanes that copy the row numbers of a slice.
    const ROW_LANES: u32 = SLICE as u32 / 4;

    /// Returns this warp's row numbers, which the piece at `after` follows. A piece and the next alternate between two
    /// buffers.
    #[inline(always)]
    fn beside(after: u32) -> Shared<u32> {
        let place = gpu::opaque_thread() / 32 * 2 + after % 2;
        shared().bytes(Self::BESIDE + place * Self::PIECE).cast()
    }

    /// Returns the sums of a piece; `have` tiles are known to have arrived.
    #[inline(always)]
    fn multiply<E: Elem<Acc = f32>>(p: &StagedParams, ahead: Ahead, have: &mut u32) -> Acc {
        let chunks = [ahead.piece.first, ahead.piece.end];
        sums::<E>(p, (chunks, 1), ahead.chunks, Self::ZEROS, |[first, tiles]| {
            Self::wait_for(have, tiles);
            first * K_TILE as u32
        })
    }

    #[inline(always)]
    fn wait_for(have: &mut u32, tiles: u32) {
        while *have < tiles {
            Self::full(*have).wait(0);
            *have += 1;
        }
    }

    /// Applies the epilogue to a whole slice and stores it. Sums move from one lane a row to neighbouring lanes.
    #[inline(always)]
    fn write<E: Elem<Acc = f32>, const PLAIN: bool>(
        p: &StagedParams,
        rows: Shared<u32>,
        acc: &Acc,
    ) {
        let own = Self::sums(true);
        stage_sums(acc, own);
        warp::sync(u32::MAX);
        let first = gpu::thread() % 32 / ACROSS;
        put_units::<E, PLAIN>(p, rows, (first, UNITS), |unit| {
            four(own, first + unit * UNIT_ROWS).ld().map(f32::from_bits)
        });
        warp::sync(u32::MAX);
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
            let next = beside.at(Self::ROW_LANES * 4).cast::<[u32; 4]>().ld();
            after += 1;
            ahead = Self::begin::<E>(p, piece_of(next), [after, end]);
            if kind == PIECE_END {
                stage_sums(&acc, Self::sums(true));
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
        beside: Shared<u32>,
        acc: &Acc,
    ) {
        let [_, joins, before, behind] = Self::span().ld();
        let crossing = [before, behind];
        let wide = cluster::size() > 1;
        if joins > 0 {
            if kind == PIECE_OPEN {
                stage_sums(acc, Self::sums(false));
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
