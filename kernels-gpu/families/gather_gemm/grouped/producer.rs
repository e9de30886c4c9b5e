//! The warps that bring stages: rows of A by 16-byte copies where they are gathered, by the copy engine where they are
//! neighbours; W by the copy engine, through a map of three axes, whose boxes end where an expert's matrix ends. Without a
//! copy engine all threads bring all of it.

use super::DEPTH;
use super::work::Work;
use crate::device::prelude::*;
use crate::device::rows::{self, Rows, Source};
use crate::families::gather_gemm::abi::*;

impl<
    const CHUNKS: usize,
    const ORDER: u32,
    const GATED: bool,
    const ROWS: usize,
    A: Multiply,
    L: Loader,
> GroupedTile<CHUNKS, ORDER, GATED, ROWS, A, L>
{
    /// Where W lies in a stage, and the barrier on which it arrives.
    #[inline(always)]
    pub(super) fn w_of(slot: u32) -> (u32, u32) {
        (Self::stage(slot) + Self::A_BYTES as u32, Self::full(slot))
    }

    /// The threads that bring stages, this one of them.
    #[inline(always)]
    fn team() -> Team {
        let thread = gpu::opaque_thread() - Self::CONSUMERS * 32;
        Team { thread, threads: GROUPED_COPIERS }
    }

    /// A box of W of so many rows.
    #[inline(always)]
    fn shape(rows: usize) -> Shape {
        let element = if ORDER == SCALED_COLUMNS { 1 } else { 2 };
        Shape { rows, row_bytes: GROUPED_DEPTH * element, element }
    }

    /// Starts the copies of W, `deep` into a tile's, to shared `to`; their bytes count at `full`. One thread, or all that
    /// copy.
    #[inline(always)]
    pub(super) fn start_w(
        p: &GroupedParams,
        at: u64,
        (work, deep): (Work, u32),
        (to, full): (u32, u32),
        policy: u64,
    ) {
        let map = at + 128;
        let (shared, rank) = (Self::PAIRS && work.shared, cluster::rank());
        let load = |to: u32, place: [u32; 3], half: usize, rows: usize| {
            if !L::BY_ONE {
                let shape = Self::shape(rows);
                L::tile::<3>(Self::team(), to, (map, &p.w_map), place, shape, full);
            } else if !shared {
                bulk::tma_load_3d_with_policy(to, map, place, full, policy);
            } else if half as u32 == rank {
                bulk::tma_load_3d_multicast(to, map, place, full, policy);
            }
        };
        if ORDER & B_COLUMNS == 0 {
            unroll!(c < CHUNKS, most 4, {
                let to = to + (c * SMEM_TILE) as u32;
                // Gates, then as many columns further.
                let column = match c < Self::OUT_CHUNKS {
                    true => work.column + 64 * c as u32,
                    false => p.n + work.column + 64 * (c - Self::OUT_CHUNKS) as u32,
                };
                load(to, [column, deep, work.expert], 2 * c / CHUNKS, GROUPED_DEPTH);
            });
        } else {
            let across = CHUNKS / Self::BOXES;
            unroll!(half < Self::BOXES, most 4, {
                let to = to + (half * across * Self::CHUNK_BYTES) as u32;
                let further = if GATED { p.n } else { 64 * across as u32 };
                let column = work.column + half as u32 * further;
                load(to, [deep, column, work.expert], half, 64 * across);
            });
        }
    }

    /// Boxes of A that hold a panel's rows, and rows of one.
    #[inline(always)]
    fn boxes(p: &GroupedParams, rows: u32) -> (u32, u32) {
        match p.flags & GROUPED_NARROW {
            0 => (1, GROUPED_ROWS as u32),
            _ => (rows.div_ceil(GROUPED_FEW as u32), GROUPED_FEW as u32),
        }
    }

    /// Bytes of a panel's boxes of A.
    #[inline(always)]
    pub(super) fn a_bytes(p: &GroupedParams, rows: u32) -> u32 {
        let (boxes, each) = Self::boxes(p, rows);
        boxes * each * PANEL_BYTES as u32
    }

    /// Bytes of W and of a panel's boxes of A.
    #[inline(always)]
    fn bytes(p: &GroupedParams, rows: u32) -> u32 {
        Self::W_BYTES as u32 + Self::a_bytes(p, rows)
    }

    /// Choice of the slot that this lane fetches for its warp: the warp brings 32 rows of the panel.
    #[inline(always)]
    pub(super) fn choice(p: &GroupedParams, work: Work) -> u32 {
        let thread = gpu::opaque_thread() - Self::CONSUMERS * 32;
        global::ld_cg_b32(p.order + (work.first + thread) as u64 * 4, thread < work.rows)
    }

    /// All four warps: rows gathered by the slots' tokens. What the next tile needs is fetched a tile ahead, what tells
    /// where that lies two.
    #[inline(always)]
    pub(super) fn gather(p: &GroupedParams, at: u64) {
        grid::wait_dependency();
        grid::launch_dependents();
        let thread = gpu::thread() - Self::CONSUMERS * 32;
        let policy = global::l2_evict_first(p.flags & GROUPED_ONCE != 0);
        let tiles = Self::tiles(p);
        let mut ring = Ring::<Self>::producer();
        let mut index = Self::first_work(p);
        let mut work = Self::work(p, index, tiles);
        let mut later = Self::work(p, index + Self::stride(p), tiles);
        let mut choice = Self::choice(p, work);
        while index < tiles {
            let latest = Self::work(p, index + 2 * Self::stride(p), tiles);
            let choice_later = Self::choice(p, later);
            let rows = Self::rows(p, work, choice);
            let mut half = 0;
            loop {
                let own = Self::rows_of_half(rows, half);
                let mut deep = 0;
                while deep < p.k {
                    ring.wait_empty();
                    if L::BY_ONE && thread == 0 {
                        barrier::arrive_expect_tx(ring.full(), Self::W_BYTES as u32);
                    }
                    if !L::BY_ONE || thread == 0 {
                        Self::start_w(p, at, (work, deep), Self::w_of(ring.slot), policy);
                    }
                    Self::bring(p, own, (half, deep), &ring);
                    ring.advance();
                    deep += DEPTH;
                }
                half += 1;
                if ROWS == GROUPED_ROWS || half * 64 >= work.rows {
                    break;
                }
            }
            (work, later, choice) = (later, latest, choice_later);
            index += Self::stride(p);
        }
        copy::cp_async_wait_all();
    }

    /// Of the rows that this lane brings those of one half of the panel, where each is a tile of its own.
    #[inline(always)]
    fn rows_of_half((rows, valid): Rows, half: u32) -> Rows {
        let thread = gpu::opaque_thread() - Self::CONSUMERS * 32;
        let own = ROWS == GROUPED_ROWS || thread / 64 == half;
        (rows, if own { valid } else { 0 })
    }

    /// The rows of A that this lane brings 16 bytes of: those of the slots' tokens, or of the slots.
    #[inline(always)]
    pub(super) fn rows(p: &GroupedParams, work: Work, choice: u32) -> Rows {
        let thread = gpu::opaque_thread() - Self::CONSUMERS * 32;
        let token = match L::BY_ONE || p.flags & GROUPED_GATHER != 0 {
            true => p.top.of(choice).0,
            false => work.first + thread,
        };
        rows::shared_out(thread, token, work.rows)
    }

    /// Starts a thread's copies of rows of A, and arrives with them.
    #[inline(always)]
    pub(super) fn bring(
        p: &GroupedParams,
        rows: Rows,
        (half, deep): (u32, u32),
        ring: &Ring<Self>,
    ) {
        let thread = gpu::opaque_thread() - Self::CONSUMERS * 32;
        let source = Source { address: p.a, row_bytes: p.lda_bytes, columns: p.k };
        // Of the second half the row in front of which all rows of the stage would lie.
        let to = Self::stage(ring.slot).wrapping_sub(half * SMEM_TILE as u32);
        // Warps of the other half would clear places that are not theirs.
        if ROWS == GROUPED_ROWS || thread / 64 == half {
            if deep + DEPTH <= p.k {
                rows::bring::<true>(source, rows, thread, deep, to);
            } else {
                rows::bring::<false>(source, rows, thread, deep, to);
            }
        }
        gather::cp_async_arrive(ring.full());
    }

    /// One thread: rows that are neighbours. Those behind a panel's are others', multiplied into rows of C that nobody
    /// stores.
    #[inline(always)]
    pub(super) fn slide(p: &GroupedParams, at: u64) {
        let policy = global::l2_evict_first(p.flags & GROUPED_ONCE != 0);
        let early = p.flags & GROUPED_EARLY != 0;
        if !early {
            grid::wait_dependency();
            grid::launch_dependents();
        }
        let tiles = Self::tiles(p);
        let mut index = Self::first_work(p);
        let mut work = Self::work(p, index, tiles);
        let mut later = Self::work(p, index + Self::stride(p), tiles);
        let mut ahead = 0;
        if early {
            if index < tiles {
                ahead = Self::start_early(p, at, work, policy);
            }
            grid::wait_dependency();
            grid::launch_dependents();
        }
        let mut ring = Ring::<Self>::producer();
        while index < tiles {
            let latest = Self::work(p, index + 2 * Self::stride(p), tiles);
            let mut deep = 0;
            while deep < p.k {
                ring.wait_empty();
                let full = ring.full();
                if ahead == 0 {
                    barrier::arrive_expect_tx(full, Self::bytes(p, work.rows));
                    Self::start_w(p, at, (work, deep), Self::w_of(ring.slot), policy);
                } else {
                    ahead -= 1;
                }
                Self::start_a(p, at, (work, deep), &ring);
                ring.advance();
                deep += DEPTH;
            }
            (work, later) = (later, latest);
            index += Self::stride(p);
        }
    }

    /// Starts the copies of A's rows of a stage.
    #[inline(always)]
    pub(super) fn start_a(
        p: &GroupedParams,
        at: u64,
        (work, deep): (Work, u32),
        ring: &Ring<Self>,
    ) {
        let (boxes, each) = Self::boxes(p, work.rows);
        let mut number = 0;
        while number < boxes {
            let row = number * each;
            let to = Self::stage(ring.slot) + row * PANEL_BYTES as u32;
            bulk::tma_load_2d(to, at, deep, work.first + row, ring.full());
            number += 1;
        }
    }

    /// Starts the copies of W of the first stages, before the rows of A are there; how many.
    #[inline(always)]
    fn start_early(p: &GroupedParams, at: u64, work: Work, policy: u64) -> u32 {
        let (mut slot, mut deep) = (0, 0);
        while deep < p.k && slot < Self::STAGES as u32 {
            barrier::arrive_expect_tx(Self::full(slot), Self::bytes(p, work.rows));
            Self::start_w(p, at, (work, deep), Self::w_of(slot), policy);
            slot += 1;
            deep += DEPTH;
        }
        slot
    }
}
