//! A product with an operand whose empty micro-tiles were found while running: four warps gather the rows of B that a panel of
//! A has micro-tiles for, and start the copies of these, two warpgroups multiply. The grid is persistent: how many
//! micro-tiles there are is read on the device.

mod out;

use super::epilogue::Output;
use super::gpu;
use super::ptx::wgmma::{self, Acc};
use super::ptx::{barrier, bulk, copy, gather, global, grid, warp};
use super::stages::Stages;
use super::wgmma::WgmmaElem;
use crate::abi::*;
use crate::frag;

/// The body, generic over the element; the tile is the implementor.
pub trait Body: Tile {
    /// # Safety
    /// `p` describes live device memory, lies at the generic address `at`, and the launch has this tile's geometry.
    unsafe fn run<W: WalkInfo, E: WgmmaElem>(p: &PitParams, at: u64);
}

/// Warps that multiply.
const CONSUMERS: u32 = 8;
/// Registers of a thread that gathers, and of one that multiplies.
const FEW: u32 = 56;
const MANY: u32 = 224;
/// No stage is waiting to be freed.
const NONE: u32 = u32::MAX;
/// Micro-tiles of a stage, and of one `wgmma`.
const DEPTH: u32 = 64;
const STEP: u32 = 16;
/// Where the map of C lies behind that of A.
const C_MAP: u64 = size_of::<MapWords>() as u64;

impl PitParams {
    #[inline(always)]
    fn output(&self, item: u32) -> Output {
        Output {
            c: self.c + item as u64 * self.c_item,
            bias: self.bias,
            alpha: self.alpha,
            ldc_bytes: self.ldc_bytes,
            n: self.n,
            flags: warp::again(self.flags),
            gate: 0,
            gate_bytes: 0,
        }
    }
}

/// What a thread block computes next.
#[derive(Clone, Copy)]
struct Work {
    panel: u32,
    column: u32,
    count: u32,
}

/// Steps of 16 micro-tiles of the stage that begins at `from`.
#[inline(always)]
fn steps(count: u32, from: u32) -> u32 {
    (count - from).min(DEPTH).div_ceil(STEP)
}

impl<const MT: usize, const TURNED: bool, const ORDER: u32> Stages
    for PitColumns<MT, TURNED, ORDER>
{
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<const MT: usize, const TURNED: bool, const ORDER: u32> PitColumns<MT, TURNED, ORDER> {
    /// Work number `index`: neighbours share columns of B. Without micro-tiles behind the last. Asked for before the tile
    /// ahead is done: how many micro-tiles there are comes a whole latency of L2 later.
    #[inline(always)]
    fn work(p: &PitParams, index: u32) -> Work {
        let across = index.checked_div(p.panels).unwrap_or(0);
        let panel = index - across * p.panels;
        let there = index < p.tiles;
        Work {
            panel,
            column: across * Self::COLUMNS,
            count: global::load_b32_fresh(p.counts + panel as u64 * 4, there),
        }
    }

    /// The item that a panel belongs to, and its first row there. Rows of an A that is not turned are those of all items.
    #[inline(always)]
    fn place(p: &PitParams, panel: u32) -> (u32, u32) {
        let (item, within) = if TURNED { p.item.of(panel) } else { (0, panel) };
        (item, within * MT as u32)
    }

    /// The rows of B of the two stages that begin at place `from` of a panel's list: half of the lanes hold one of their warp's in the
    /// first, the others in the second. Whatever memory holds behind the places that were filled up.
    #[inline(always)]
    fn rows(p: &PitParams, panel: u32, from: u32, there: bool) -> u32 {
        let thread = gpu::thread_again() - CONSUMERS * 32;
        let list = p.lists + panel as u64 * p.stride as u64 * 4;
        let from = from + thread / STEP % 2 * DEPTH;
        let place = from + thread / 32 * STEP + thread % STEP;
        global::load_b32_fresh(list + place as u64 * 4, there && from < p.stride)
    }

    #[inline(always)]
    fn set_up(flags: u32, at: u64) {
        if gpu::thread() == 0 {
            let mut slot = 0;
            while slot < Self::STAGES as u32 {
                // Every thread that gathers, and the copy of A.
                barrier::init(Self::full(slot), PIT_COPIERS + u32::from(!TURNED));
                barrier::init(Self::empty(slot), CONSUMERS);
                slot += 1;
            }
            barrier::init_fence();
            if !TURNED {
                bulk::prefetch_map(at);
            }
            if flags & FLAG_VECTORS != 0 {
                bulk::prefetch_map(at + C_MAP);
            }
        }
        gpu::sync_threads();
    }

    #[inline(always)]
    fn produce(p: &PitParams, at: u64) {
        let thread = gpu::thread() - CONSUMERS * 32;
        let (warp, lane) = (thread / 32, thread % 32);
        let mut ring = (0, 1);
        let mut index = gpu::block_x();
        let mut later = Self::work(p, index);
        let mut ahead = Self::rows(p, later.panel, 0, index < p.tiles);
        while index < p.tiles {
            let (work, mut rows, mut coming) = (later, ahead, 0);
            index += gpu::grid_x();
            later = Self::work(p, index);
            ahead = Self::rows(p, later.panel, 0, index < p.tiles);
            let column = work.column + lane * 8;
            let (item, _) = p.item.of(work.panel);
            let b = p.b + item as u64 * p.item_bytes + column as u64 * 2;
            let lanes = (b, u32::from(column < p.n));
            let mut from = 0;
            while from < work.count {
                let second = from / DEPTH % 2;
                let now = warp::shuffle::<32>(rows, second * STEP + lane % STEP, u32::MAX);
                // Asked for two stages ahead: one does not take as long as L2.
                if second == 0 {
                    let next = from + 2 * DEPTH;
                    coming = Self::rows(p, work.panel, next, next < work.count);
                }
                barrier::wait(Self::empty(ring.0), ring.1);
                if TURNED {
                    Self::gather_a(p, work, ring.0, now);
                } else if thread == 0 {
                    Self::start_a(p, at, work, from, ring.0);
                }
                if from + (warp + 1) * STEP <= work.count {
                    Self::gather::<true>(p, lanes, ring.0, now);
                } else if warp < steps(work.count, from) {
                    Self::gather::<false>(p, lanes, ring.0, now);
                }
                gather::arrive_with_copies(Self::full(ring.0));
                if second == 1 {
                    // Here and no earlier: whoever reads it waits for it.
                    rows = warp::again(coming);
                }
                ring = Self::next(ring);
                from += DEPTH;
            }
        }
        copy::copy_wait_all();
    }

    /// Starts the copy of a stage's micro-tiles; one thread.
    #[inline(always)]
    fn start_a(p: &PitParams, at: u64, work: Work, from: u32, slot: u32) {
        let (to, full) = (Self::stage(slot), Self::full(slot));
        barrier::arrive_expect(full, Self::A_BYTES as u32);
        let y = work.panel * p.stride + from;
        bulk::load(to, at, 0, y, full);
        if MT == 128 {
            bulk::load(to + SLAB as u32, at, 64, y, full);
        }
    }

    /// Starts this warp's copies of pieces of rows of A: 8 lanes bring one. Zeros where there is none, so that whatever an earlier
    /// stage left there is not multiplied.
    #[inline(always)]
    fn gather_a(p: &PitParams, work: Work, slot: u32, rows: u32) {
        let thread = gpu::thread_again() - CONSUMERS * 32;
        let (warp, lane) = (thread / 32, thread % 32);
        let (within, chunk) = (lane / 8, lane % 8);
        let (item, left) = Self::place(p, work.panel);
        let column = left + chunk * 8;
        let from = p.a + item as u64 * p.a_item + column as u64 * 2;
        let to = Self::stage(slot) + warp * STEP * PANEL_BYTES as u32;
        unroll!(four < 4, {
            let place = 4 * (four as u32) + within;
            let row = warp::shuffle::<32>(rows, place, u32::MAX);
            let to = to + place * PANEL_BYTES as u32 + (chunk ^ (place % 8)) * 16;
            let there = column < p.m && row != NO_TILE;
            let from = from + row as u64 * p.lda_bytes as u64;
            gather::copy_or_zero(to, if there { from } else { p.a }, there);
        });
    }

    /// Starts this warp's copies of rows of B: a lane brings 16 bytes of each, from its own column on. `WHOLE`: there are 16; else
    /// those that are not arrive as zeros, since zeros of A times whatever is no number would be none.
    #[inline(always)]
    fn gather<const WHOLE: bool>(p: &PitParams, (from, inside): (u64, u32), slot: u32, rows: u32) {
        let thread = gpu::thread_again() - CONSUMERS * 32;
        let (warp, lane) = (thread / 32, thread % 32);
        let to = Self::stage(slot) + Self::B_AT as u32;
        let to = to + lane / 8 * SLAB as u32 + warp * STEP * PANEL_BYTES as u32;
        unroll!(eight < 2, {
            unroll!(i < 8, {
                let row = warp::shuffle::<32>(rows, (8 * eight + i) as u32, u32::MAX);
                let to = to + ((lane % 8) ^ i as u32) * 16 + (8 * eight + i) as u32 * 128;
                if WHOLE {
                    let from = from + row as u64 * p.ldb_bytes as u64;
                    copy::copy_async_whole(to, from, inside);
                } else {
                    let there = inside != 0 && row != NO_TILE;
                    let from = from + row as u64 * p.ldb_bytes as u64;
                    gather::copy_or_zero(to, if there { from } else { p.b }, there);
                }
            });
        });
    }

    /// `C` chunks of 64 columns of a warpgroup: 128 rows are two halves, fewer are both warpgroups', half the columns each.
    #[inline(always)]
    fn consume<E: WgmmaElem, const C: usize>(p: &PitParams, at: u64) {
        let half = gpu::thread() / 128;
        let mut ring = (0, 0);
        let mut index = gpu::block_x();
        let mut later = Self::work(p, index);
        // The stage out of which the copy engine stores the tile before this one.
        let mut lent = NONE;
        while index < p.tiles {
            let work = later;
            let count = warp::shuffle::<32>(work.count, 0, u32::MAX);
            let mut acc = Acc::<C>::zero();
            let mut held = NONE;
            let mut from = 0;
            while from < count {
                let slot = ring.0;
                barrier::wait(Self::full(slot), ring.1);
                // The gathered rows were written by ordinary copies.
                barrier::fence_copies();
                acc.fence();
                Self::multiply::<E, C>(&mut acc, slot, half, steps(count, from));
                wgmma::commit();
                // Two stages are being multiplied: the engine has time, and the ring is as long again before it needs the stage.
                if from == DEPTH {
                    Self::take_back(lent);
                    lent = NONE;
                }
                acc.wait::<1>();
                Self::free(held);
                held = slot;
                ring = Self::next(ring);
                from += DEPTH;
            }
            // Behind the last fence in front of the end: one might wait for what was asked for.
            index += gpu::grid_x();
            later = Self::work(p, index);
            acc.wait::<0>();
            Self::take_back(lent);
            lent = Self::leave::<E, C>(p, at, work, (half, held, count), &mut acc);
        }
        // Shared memory ends with the thread block.
        Self::take_back(lent);
    }

    #[inline(always)]
    fn multiply<E: WgmmaElem, const C: usize>(acc: &mut Acc<C>, slot: u32, half: u32, used: u32) {
        let stage = Self::stage(slot);
        let panel = stage + Self::B_AT as u32;
        let (a, b) = if MT == 128 {
            (stage + half * SLAB as u32, panel)
        } else {
            (stage, panel + half * 2 * SLAB as u32)
        };
        let row = Self::A_ROW as u32;
        // 32 rows stand for 64: the second half of the operand is the first again.
        let between = if MT == 32 { 0 } else { DEPTH * row };
        unroll!(step < 4, {
            if (step as u32) < used {
                let deep = step as u32 * STEP;
                let a = frag::descriptor(a + deep * row, row, between);
                let b = frag::descriptor(b + deep * PANEL_BYTES as u32, 128, SLAB as u32);
                E::mma::<C, 1, 1>(acc, a, b);
            }
        });
    }

    /// Lets the stage be overwritten, as far as this warp goes.
    #[inline(always)]
    fn free(slot: u32) {
        if slot == NONE {
            return;
        }
        // One lane arrives for all, when all have read.
        warp::sync_lanes(u32::MAX);
        if gpu::thread_again().is_multiple_of(32) {
            barrier::arrive(Self::empty(slot));
        }
    }
}

impl<const MT: usize, const TURNED: bool, const ORDER: u32> Body for PitColumns<MT, TURNED, ORDER> {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: WgmmaElem>(p: &PitParams, at: u64) {
        grid::let_next_start();
        Self::set_up(p.flags, at);
        grid::wait_for_previous();
        if gpu::thread() >= CONSUMERS * 32 {
            barrier::registers_down::<FEW>();
            Self::produce(p, at);
        } else {
            barrier::registers_up::<MANY>();
            if MT == 128 {
                Self::consume::<E, 4>(p, at);
            } else {
                Self::consume::<E, 2>(p, at);
            }
        }
    }
}
