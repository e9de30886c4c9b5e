//! Copies of A, of B, and of the metadata if it is part of a stage.

use crate::device::prelude::*;
use crate::families::gemm::abi::*;

impl<const MA: usize, const CHUNKS: usize, F: NmForm<A: Multiply, L: Loader>>
    TwoOfFour<MA, CHUNKS, F>
{
    /// Starts the copies of all stages of all tiles, each after a wait for an empty stage. With TMA, thread 0 of the
    /// producer warpgroup starts them and the others return.
    #[inline(always)]
    pub(super) fn produce(p: &NmParams, at: Maps) {
        let team =
            Team { thread: gpu::thread() - CONSUMER_WARPS * 32, threads: Self::PRODUCER_THREADS };
        if F::L::BY_ONE && team.thread != 0 {
            return;
        }
        let mut ring = Ring::<Self>::producer();
        let mut tile = gpu::block_x();
        while tile < p.tile_count {
            let corner = p.tile_origin(tile);
            let mut s = 0;
            while s < p.pairs * NM_PAIR as u32 {
                ring.fill::<F::L>(team.thread, Self::STAGE as u32, |slot| {
                    Self::start(p, at, team, corner, s, slot);
                });
                s += 1;
            }
            tile += gpu::grid_x();
        }
        F::L::wait_own();
    }

    /// Starts the copies of stage `s` of a tile: A, then 64 columns of B at a time (8-bit B: all columns at once).
    #[inline(always)]
    fn start(p: &NmParams, at: Maps, team: Team, [row, column]: [u32; 2], s: u32, slot: u32) {
        let (to, full) = (Self::stage(slot), Self::full(slot));
        let shape = |rows: usize, row_bytes: usize| Shape { rows, row_bytes, element: F::BYTES };
        let place = [s * (Self::DEPTH / 2) as u32, row];
        let a = shape(Self::ROWS, NM_ROW_BYTES);
        F::L::tile(team, to, (at.map(0), &p.a_map), place, a, full);
        let k = s * Self::DEPTH as u32;
        let b_map = (at.map(1), &p.b_map);
        if F::BYTES == 1 {
            let b = shape(CHUNKS * HALF, PANEL_BYTES);
            F::L::tile(team, to.bytes(Self::A_BYTES as u32), b_map, [k, column], b, full);
        } else {
            unroll!(c < CHUNKS, most 4, {
                let to = to.bytes((Self::A_BYTES + c * SMEM_TILE) as u32);
                let place = [column + c as u32 * 64, k];
                F::L::tile(team, to, b_map, place, shape(Self::DEPTH, PANEL_BYTES), full);
            });
        }
        if !F::A::ASYNCHRONOUS {
            Self::start_metadata(p, team.thread, row, s, to.bytes(Self::OPERANDS as u32));
        }
    }

    /// Starts the copies of a stage's metadata: for each 64 rows a line of words, one for each thread that holds any.
    #[inline(always)]
    fn start_metadata(p: &NmParams, thread: u32, row: u32, s: u32, to: Shared<u8>) {
        let words = Self::META_WORDS as u32;
        let (pair, second) = (s / NM_PAIR as u32, s % NM_PAIR as u32);
        let mut holder = thread;
        while holder < NM_HOLDERS as u32 {
            let own = (holder * NM_PAIR as u32 + second) * words * 4;
            unroll!(i < 2 * MA, most 4, {
                let at = (row / HALF as u32 + i as u32) * p.pairs + pair;
                let line = at as u64 * (NM_HOLDERS * NM_PAIR * 4) as u64 * words as u64;
                unroll!(w < Self::META_WORDS, most 4, {
                    let to = to.bytes(((i * Self::META_WORDS + w) * Self::META_LINE) as u32);
                    let from = p.meta().bytes(line).bytes(own + w as u32 * 4);
                    from.cp_async_4(to.bytes(holder * 4));
                });
            });
            holder += Self::PRODUCER_THREADS;
        }
    }
}
