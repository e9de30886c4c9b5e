//! W as e4m3 with scales: TMA copies the codes into a ring of their own, stages ahead. Four dedicated warps scale the
//! codes, round them to A's type, and write them to W's part of a stage.

use core::marker::PhantomData;

use super::DEPTH;
use super::work::{Cursor, Work};
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

/// Threads that write W, and the first of them.
const WRITERS: u32 = GROUPED_PRODUCER_THREADS;
const FIRST_WRITER: u32 = CONSUMER_WARPS * 32 + GROUPED_PRODUCER_THREADS;
/// Index of the scale of columns that do not exist.
pub(super) const NO_SCALE: u32 = u32::MAX;

/// Ring of codes that are not scaled yet.
struct Codes<const CHUNKS: usize, F>(PhantomData<F>);

impl<const CHUNKS: usize, F: GroupedForm> Stages for Codes<CHUNKS, F> {
    const COUNT: usize = GroupedTile::<CHUNKS, F>::CODE_STAGES;
    const STRIDE: usize = CHUNKS * GroupedTile::<CHUNKS, F>::CHUNK_BYTES;
    const FIRST_STAGE: usize = GroupedTile::<CHUNKS, F>::CODES;
    const FIRST_BARRIER: usize =
        GroupedTile::<CHUNKS, F>::BARRIERS + GroupedTile::<CHUNKS, F>::STAGES * 16;
}

/// Progress of the copies of W, for the thread that starts them, ahead of the stages that are written.
struct Ahead<const CHUNKS: usize, F: GroupedForm> {
    at: Cursor,
    ring: Ring<Codes<CHUNKS, F>>,
    policy: u64,
}

impl<const CHUNKS: usize, F: GroupedForm<A: Multiply, L: Loader>> Ahead<CHUNKS, F> {
    /// Starts the copies of one stage, if any remains.
    #[inline(always)]
    fn start(&mut self, p: &GroupedParams, at: Maps) {
        if self.at.index >= self.at.tiles || p.k == 0 {
            return;
        }
        let slot = self.ring.wait_empty();
        let full = self.ring.full();
        full.arrive_expect_tx(Codes::<CHUNKS, F>::STRIDE as u32);
        let to = (Codes::<CHUNKS, F>::stage(slot), full);
        let from = (self.at.work, self.at.deep);
        GroupedTile::<CHUNKS, F>::start_w(p, at, from, to, self.policy);
        self.ring.advance();
        GroupedTile::<CHUNKS, F>::next_stage(p, &mut self.at);
    }
}

impl<const CHUNKS: usize, F: GroupedForm<A: Multiply, L: Loader>> GroupedTile<CHUNKS, F> {
    /// Arrivals that fill a stage: every thread that writes, and A's copies.
    pub(super) const FILL_GATHERED: u32 = 2 * WRITERS;
    pub(super) const FILL_NEIGHBOURS: u32 = WRITERS + 1;

    /// Initializes the barriers of the ring of codes; called by one thread.
    #[inline(always)]
    pub(super) fn make_code_barriers() {
        Codes::<CHUNKS, F>::make_barriers(1, WRITERS / 32);
    }

    /// Copies A's rows, gathered or adjacent, and W ahead of them; called by all four producer warps.
    #[inline(always)]
    pub(super) fn produce_scaled(p: &GroupedParams, at: Maps) {
        let early = p.flags & GROUPED_EARLY != 0;
        let gathers = p.flags & GROUPED_GATHER != 0;
        if !early {
            grid::wait_dependency();
            grid::launch_dependents();
        }
        let thread = gpu::thread() - Self::CONSUMER_WARPS * 32;
        let mut ahead = Ahead::<CHUNKS, F> {
            at: Self::first_stage(p),
            ring: Ring::producer(),
            policy: global::l2_evict_first(p.flags & GROUPED_ONCE != 0),
        };
        let (mut index, tiles) = (gpu::block_x(), ahead.at.tiles);
        let (mut work, mut later) = (ahead.at.work, ahead.at.later);
        let mut started = 1;
        while started < Self::CODE_STAGES as u32 {
            if thread == 0 {
                ahead.start(p, at);
            }
            started += 1;
        }
        if early {
            grid::wait_dependency();
            grid::launch_dependents();
        }
        // Threads without copies exit: they would wait for stages that have been reused meanwhile.
        if !gathers && thread != 0 {
            return;
        }
        let mut choice = if gathers { Self::producer_choice(p, work) } else { 0 };
        let mut ring = Ring::<Self>::producer();
        while index < tiles {
            let latest = Self::work(p, index + 2 * gpu::grid_x(), tiles);
            let choice_later = if gathers { Self::producer_choice(p, later) } else { 0 };
            let rows = match gathers {
                true => Self::rows(p, work, choice),
                false => ([0; 8], 0),
            };
            let mut deep = 0;
            while deep < p.k {
                ring.wait_empty();
                if gathers {
                    Self::start_rows(p, rows, (0, deep), &ring);
                } else if thread == 0 {
                    ring.full().arrive_expect_tx(Self::a_bytes(p, work.rows));
                    Self::start_a(p, at, (work, deep), &ring);
                }
                if thread == 0 {
                    ahead.start(p, at);
                }
                ring.advance();
                deep += DEPTH;
            }
            (work, later, choice) = (later, latest, choice_later);
            index += gpu::grid_x();
        }
        copy::cp_async_wait_all();
    }

    /// Writes the scaled W; called by the four warps that do nothing else.
    #[inline(always)]
    pub(super) fn scale<E: WgmmaElem>(p: &GroupedParams) {
        // Only row blocks and scales are read from global memory.
        if p.flags & GROUPED_EARLY == 0 {
            grid::wait_dependency();
        }
        grid::launch_dependents();
        let tiles = Self::tiles(p);
        let mut index = gpu::block_x();
        let mut work = Self::work(p, index, tiles);
        let mut codes = Ring::<Codes<CHUNKS, F>>::consumer();
        let mut ring = Ring::<Self>::producer();
        while index < tiles {
            index += gpu::grid_x();
            let later = Self::work(p, index, tiles);
            let scales = Self::scales(p, work);
            let mut deep = 0;
            let mut next = Self::factors(p, scales, deep);
            while deep < p.k {
                let by = next;
                next = Self::factors(p, scales, deep + DEPTH);
                let from = Codes::<CHUNKS, F>::stage(codes.wait_full());
                let own = Self::load_codes(from);
                ring.wait_empty();
                let thread = gpu::opaque_thread() - FIRST_WRITER;
                Self::write_scaled::<E>(thread, own, Self::w_of(ring.slot).0, by);
                F::A::fence_proxy_async();
                ring.full().arrive();
                Codes::<CHUNKS, F>::release(codes.slot);
                ring.advance();
                codes.advance();
                deep += DEPTH;
            }
            work = later;
        }
    }

    /// Returns the first scales of a tile's columns of W: of gates and of the others, or of each 128 neighbouring
    /// columns.
    #[inline(always)]
    pub(super) fn scales(p: &GroupedParams, work: Work) -> [u32; 2] {
        let block = GROUPED_BLOCK as u32;
        let [n, k] = [p.n, p.k].map(Self::opaque_if_mma_sync);
        let down = (if F::GATED { 2 * n } else { n }).div_ceil(block);
        let apart = if F::GATED { n } else { block };
        [0, 1].map(|i| {
            let line = (work.column + i * apart) / block;
            if line < down && (i as usize) < CHUNKS.div_ceil(Self::SCALE_CHUNKS) {
                (work.expert * down + line) * k.div_ceil(Self::SCALE_DEPTH as u32)
            } else {
                NO_SCALE
            }
        })
    }

    /// Loads the scales of the stage that begins at `deep`; zeros past the last one.
    #[inline(always)]
    pub(super) fn factors(p: &GroupedParams, scales: [u32; 2], deep: u32) -> [f32; 2] {
        let along = deep / Self::SCALE_DEPTH as u32;
        scales.map(|first| p.scales().at(first + along).ld_if(first != NO_SCALE && deep < p.k))
    }

    /// Loads a thread's codes of a stage, 16 of each 32 rows of W.
    #[inline(always)]
    fn load_codes(from: Shared<u8>) -> [[u32; 4]; 8] {
        let from = from.cast::<[u32; 4]>().at(gpu::opaque_thread() - FIRST_WRITER);
        let mut codes = [[0; 4]; 8];
        unroll!(i < 2 * CHUNKS, {
            codes[i] = from.at(i as u32 * WRITERS).ld();
        });
        codes
    }

    /// Writes the codes that thread `thread` of the writers has loaded, scaled, to W's part of a stage.
    #[inline(always)]
    pub(super) fn write_scaled<E: WgmmaElem>(
        thread: u32,
        codes: [[u32; 4]; 8],
        to: Shared<u8>,
        by: [f32; 2],
    ) {
        let (row, quarter) = (thread / 4, thread % 4);
        let to = to.bytes(row * PANEL_BYTES as u32);
        unroll!(i < 2 * CHUNKS, {
            let by = by[if F::GATED { i / CHUNKS } else { 0 }];
            unroll!(half < 2, {
                let mut eight = [0.0; 8];
                unroll!(pair < 4, {
                    let two = codes[i][2 * half + pair / 2] >> (16 * (pair % 2));
                    let two = matrix::f16x2_from_e4m3(two);
                    eight[2 * pair] = E::mul(by, matrix::f32_from_f16(two));
                    eight[2 * pair + 1] = E::mul(by, matrix::f32_from_f16(two >> 16));
                });
                let place = (2 * quarter + half as u32) ^ (row % 8);
                let line = to.bytes(i as u32 * WRITERS / 4 * PANEL_BYTES as u32);
                line.cast::<[u32; 4]>().at(place).st(E::put(&eight));
            });
        });
    }
}
