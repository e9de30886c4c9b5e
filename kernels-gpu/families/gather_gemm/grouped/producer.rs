//! Producer warps. `produce_gathered`: all 128 threads copy rows of A by `cp.async`, and one of them starts the TMA
//! copies of W. `produce_adjacent`: rows of A are adjacent, so one thread copies A and W by TMA. The tensor map of W
//! has three axes, so a box ends where the matrix of an expert ends. Without TMA, all producer threads copy A and W by
//! `cp.async` (`produce_gathered`, also for adjacent rows).

use super::DEPTH;
use super::work::Work;
use crate::device::prelude::*;
use crate::device::rows::{self, Rows, Source};
use crate::families::gather_gemm::abi::*;

impl<const CHUNKS: usize, F: GroupedForm<A: Multiply, L: Loader>> GroupedTile<CHUNKS, F> {
    /// Returns the address of W in a stage, and the barrier on which it arrives.
    #[inline(always)]
    pub(super) fn w_of(slot: u32) -> (Shared<u8>, Shared<Mbarrier>) {
        (Self::stage(slot).bytes(Self::A_BYTES as u32), Self::full(slot))
    }

    /// Returns the number of this producer thread.
    #[inline(always)]
    pub(super) fn copier() -> u32 {
        gpu::opaque_thread() - Self::CONSUMER_WARPS * 32
    }

    /// Returns the team of producer threads, with the number of this thread.
    #[inline(always)]
    fn team() -> Team {
        Team { thread: Self::copier(), threads: GROUPED_PRODUCER_THREADS }
    }

    /// Returns the shape of a box of W with `rows` rows.
    #[inline(always)]
    fn shape(rows: usize) -> Shape {
        let element = if F::ORDER == SCALED_COLUMNS { 1 } else { 2 };
        Shape { rows, row_bytes: GROUPED_DEPTH * element, element }
    }

    /// Starts the copies of a tile's W at depth `deep` to shared `to`; they complete barrier `full`. Called by one
    /// thread, or by all that copy.
    #[inline(always)]
    pub(super) fn start_w(
        p: &GroupedParams,
        at: Maps,
        (work, deep): (Work, u32),
        (to, full): (Shared<u8>, Shared<Mbarrier>),
        policy: u64,
    ) {
        let map = at.map(1);
        // In a cluster each thread block copies the half of W with its rank to the stages of both (multicast). The
        // barrier of each stage expects all bytes of W.
        let (shared, rank) = (Self::PAIRS && work.shared, cluster::rank());
        let load = |to: Shared<u8>, place: [u32; 3], half: usize, rows: usize| {
            if !F::L::BY_ONE {
                let shape = Self::shape(rows);
                F::L::tile::<3>(Self::team(), to, (map, &p.w_map), place, shape, full);
            } else if !shared {
                map.load_3d_with_policy(to, place, full, policy);
            } else if half as u32 == rank {
                map.load_3d_multicast(to, place, full, policy);
            }
        };
        if F::ORDER & B_COLUMNS == 0 {
            unroll!(c < CHUNKS, most 4, {
                let to = to.bytes((c * SMEM_TILE) as u32);
                // Gates first, then the columns that they multiply, `p.n` further.
                let column = match c < Self::OUT_CHUNKS {
                    true => work.column + 64 * c as u32,
                    false => p.n + work.column + 64 * (c - Self::OUT_CHUNKS) as u32,
                };
                load(to, [column, deep, work.expert], 2 * c / CHUNKS, GROUPED_DEPTH);
            });
        } else {
            let across = CHUNKS / Self::BOXES;
            unroll!(half < Self::BOXES, most 4, {
                let to = to.bytes((half * across * Self::CHUNK_BYTES) as u32);
                let further = if F::GATED { p.n } else { 64 * across as u32 };
                let column = work.column + half as u32 * further;
                load(to, [deep, column, work.expert], half, 64 * across);
            });
        }
    }

    /// Returns the number of boxes of A that hold a row block's rows, and the rows of one box.
    #[inline(always)]
    fn boxes(p: &GroupedParams, rows: u32) -> (u32, u32) {
        match p.flags & GROUPED_NARROW {
            0 => (1, GROUPED_ROWS as u32),
            _ => (rows.div_ceil(GROUPED_FEW as u32), GROUPED_FEW as u32),
        }
    }

    /// Returns the bytes of a row block's boxes of A.
    #[inline(always)]
    pub(super) fn a_bytes(p: &GroupedParams, rows: u32) -> u32 {
        let (boxes, each) = Self::boxes(p, rows);
        boxes * each * PANEL_BYTES as u32
    }

    /// Returns the bytes of W and of a row block's boxes of A.
    #[inline(always)]
    fn bytes(p: &GroupedParams, rows: u32) -> u32 {
        Self::W_BYTES as u32 + Self::a_bytes(p, rows)
    }

    /// Loads the choice of this lane's slot: a warp copies 32 rows of the row block.
    #[inline(always)]
    pub(super) fn producer_choice(p: &GroupedParams, work: Work) -> u32 {
        let thread = Self::copier();
        p.order().at(work.first + thread).ld_if(thread < work.rows)
    }

    /// Producer loop for gathered rows, called by all four warps. The work item is loaded two tiles ahead. The choice
    /// of each row, which gives its token, is loaded one tile ahead.
    #[inline(always)]
    pub(super) fn produce_gathered(p: &GroupedParams, at: Maps) {
        grid::wait_dependency();
        grid::launch_dependents();
        let thread = gpu::thread() - Self::CONSUMER_WARPS * 32;
        let policy = global::l2_evict_first(p.flags & GROUPED_ONCE != 0);
        let tiles = Self::tiles(p);
        let mut ring = Ring::<Self>::producer();
        let mut index = Self::first_work(p);
        let mut work = Self::work(p, index, tiles);
        let mut later = Self::work(p, index + Self::stride(p), tiles);
        let mut choice = Self::producer_choice(p, work);
        while index < tiles {
            let latest = Self::work(p, index + 2 * Self::stride(p), tiles);
            let choice_later = Self::producer_choice(p, later);
            let rows = Self::rows(p, work, choice);
            let mut half = 0;
            loop {
                let own = Self::rows_of_half(rows, half);
                let mut deep = 0;
                while deep < p.k {
                    ring.wait_empty();
                    if F::L::BY_ONE && thread == 0 {
                        ring.full().arrive_expect_tx(Self::W_BYTES as u32);
                    }
                    if !F::L::BY_ONE || thread == 0 {
                        Self::start_w(p, at, (work, deep), Self::w_of(ring.slot), policy);
                    }
                    Self::start_rows(p, own, (half, deep), &ring);
                    ring.advance();
                    deep += DEPTH;
                }
                half += 1;
                if F::ROWS == GROUPED_ROWS || half * 64 >= work.rows {
                    break;
                }
            }
            (work, later, choice) = (later, latest, choice_later);
            index += Self::stride(p);
        }
        copy::cp_async_wait_all();
    }

    /// Limits the rows of this lane to one half of the row block, if each half is a tile of its own.
    #[inline(always)]
    fn rows_of_half((rows, valid): Rows, half: u32) -> Rows {
        let thread = Self::copier();
        let own = F::ROWS == GROUPED_ROWS || thread / 64 == half;
        (rows, if own { valid } else { 0 })
    }

    /// Returns the rows of A of which this lane copies 16 bytes: those of the slots' tokens, or of the slots.
    #[inline(always)]
    pub(super) fn rows(p: &GroupedParams, work: Work, choice: u32) -> Rows {
        let thread = Self::copier();
        let token = match F::L::BY_ONE || p.flags & GROUPED_GATHER != 0 {
            true => p.top.of(choice).0,
            false => work.first + thread,
        };
        rows::of_thread(thread, token, work.rows)
    }

    /// Starts this thread's `cp.async` copies of rows of A. The thread arrives at `full` when they are complete.
    #[inline(always)]
    pub(super) fn start_rows(
        p: &GroupedParams,
        rows: Rows,
        (half, deep): (u32, u32),
        ring: &Ring<Self>,
    ) {
        let thread = Self::copier();
        let source = Source { matrix: p.a(), row_bytes: p.lda_bytes, columns: p.k };
        // Address of row 0 of the row block; for the second half it precedes the stage.
        let to = Self::stage(ring.slot).bytes((half * SMEM_TILE as u32).wrapping_neg());
        // Warps of the other half would write zeros to rows of this half.
        if F::ROWS == GROUPED_ROWS || thread / 64 == half {
            if deep + DEPTH <= p.k {
                rows::gather::<true, _>(source, rows, thread, deep, to);
            } else {
                rows::gather::<false, _>(source, rows, thread, deep, to);
            }
        }
        ring.full().arrive_after_copies();
    }

    /// Producer loop for adjacent rows: one thread starts the TMA copies of A and W for all tiles. A box may contain
    /// rows past the end of the row block. Their products are rows of C that are not stored.
    #[inline(always)]
    pub(super) fn produce_adjacent(p: &GroupedParams, at: Maps) {
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
                    full.arrive_expect_tx(Self::bytes(p, work.rows));
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
        at: Maps,
        (work, deep): (Work, u32),
        ring: &Ring<Self>,
    ) {
        let (boxes, each) = Self::boxes(p, work.rows);
        let mut number = 0;
        while number < boxes {
            let row = number * each;
            let to = Self::stage(ring.slot).bytes(row * PANEL_BYTES as u32);
            at.map(0).load_2d(to, [deep, work.first + row], ring.full());
            number += 1;
        }
    }

    /// Starts the copies of W for the first stages, before the rows of A exist. Returns the number of these stages.
    #[inline(always)]
    fn start_early(p: &GroupedParams, at: Maps, work: Work, policy: u64) -> u32 {
        let (mut slot, mut deep) = (0, 0);
        while deep < p.k && slot < Self::STAGES as u32 {
            Self::full(slot).arrive_expect_tx(Self::bytes(p, work.rows));
            Self::start_w(p, at, (work, deep), Self::w_of(slot), policy);
            slot += 1;
            deep += DEPTH;
        }
        slot
    }
}
