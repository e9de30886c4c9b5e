//! The copies of a tile's stages: by one lane where the copy engine does the rest, or by a warpgroup.

use super::{DenseTile, Spot};
use crate::device::prelude::*;
use crate::families::gemm::abi::*;

/// What of a stage is copied.
pub(super) const BOTH: u32 = 0;
pub(super) const ONLY_A: u32 = 1;
pub(super) const ONLY_B: u32 = 2;
/// B alone, of stages that others fill with A: it arrives for itself.
pub(super) const B_ARRIVES: u32 = 3;

/// Number of the barrier of all threads that copy.
const COPYING: u32 = 1;

impl<
    const GROUPS: usize,
    const CHUNKS: usize,
    const CUT: usize,
    const BYTES: usize,
    A: Multiply,
    L: Loader,
> DenseTile<GROUPS, CHUNKS, CUT, BYTES, A, L>
{
    /// Threads that copy together.
    #[inline(always)]
    pub(super) fn team() -> Team {
        let first = if Self::UNDIVIDED { 0 } else { Self::WARPS as u32 * 32 };
        Team { thread: gpu::thread() - first, threads: Self::TEAM as u32 }
    }

    /// Does this thread start copies? Of those that copy, one lane where the copy engine does the rest, which waits for
    /// nobody between one stage and the next; or all.
    #[inline(always)]
    pub(super) fn starts() -> bool {
        !L::BY_ONE || warp::elect_one()
    }

    /// Is this the thread of those that copy which makes the barriers?
    #[inline(always)]
    pub(super) fn sets_up() -> bool {
        if L::BY_ONE { warp::elect_one() } else { Self::team().thread == 0 }
    }

    /// Waits for all threads that copy.
    #[inline(always)]
    pub(super) fn together() {
        if Self::COPIERS == 32 {
            warp::sync(u32::MAX);
        } else {
            barrier::sync_named(COPYING, Self::COPIERS as u32);
        }
    }

    /// Starts the copies of stages `from..to` of this thread block's part; `ring` is the place of the first. Those that
    /// start copies. `FREED`: the ring has been round once, and stages are waited for.
    #[inline(always)]
    pub(super) fn start<const FREED: bool, const WHAT: u32>(
        p: &DenseParams,
        (at, spot): (u64, impl Spot),
        corner: [u32; 2],
        first: u32,
        from: u32,
        to: u32,
        ring: (u32, u32),
    ) {
        let mut ring = ring;
        let mut s = from;
        while s < to {
            if FREED {
                barrier::wait(Self::empty(ring.0), ring.1);
            }
            let k = (first + s) * Self::DEPTH as u32;
            Self::copy::<WHAT>(p, (at, spot), Self::team(), corner, k, ring.0);
            ring = Self::next(ring);
            s += 1;
        }
    }

    /// Starts the copies of the stage that begins `k` deep; those that start copies.
    #[inline(always)]
    pub(super) fn copy<const WHAT: u32>(
        p: &DenseParams,
        (at, spot): (u64, impl Spot),
        team: Team,
        [top, left]: [u32; 2],
        k: u32,
        slot: u32,
    ) {
        let (stage, full) = (Self::stage(slot), Self::full(slot));
        // Without the copy engine threads arrive behind their copies.
        match WHAT {
            _ if !L::BY_ONE => {}
            BOTH => barrier::arrive_expect_tx(full, Self::STAGE as u32),
            ONLY_A => barrier::arrive_expect_tx(full, Self::STAGE_OF_A as u32),
            B_ARRIVES => barrier::arrive_expect_tx(full, (Self::STAGE - Self::STAGE_OF_A) as u32),
            // The stage is full when A has come as well: that arrives.
            _ => barrier::expect_tx(full, (Self::STAGE - Self::STAGE_OF_A) as u32),
        }
        let b_tile = stage + (GROUPS * SMEM_TILE) as u32;
        let (a, b) = if Self::TRANSPOSED { (b_tile, stage) } else { (stage, b_tile) };
        if WHAT == BOTH || WHAT == ONLY_A {
            spot.bring_a::<L>(team, a, (at, &p.a_map), [k, top], Self::shape(Self::ROWS), full);
        }
        if WHAT != ONLY_A {
            // B in pieces of 128 bytes across.
            let wide = Self::ACROSS as u32;
            unroll!(c < Self::COLUMNS as usize / Self::ACROSS, {
                let to = b + (c * Self::DEPTH * PANEL_BYTES) as u32;
                let (map, place) = ((at + 128, &p.b_map), [left + wide * c as u32, k]);
                spot.bring_b::<L>(team, to, map, place, Self::shape(Self::DEPTH), full);
            });
        }
        if WHAT != ONLY_B {
            L::started(full, team.thread);
        }
    }

    /// So many rows of 128 bytes.
    #[inline(always)]
    fn shape(rows: usize) -> Shape {
        Shape { rows, row_bytes: PANEL_BYTES, element: BYTES }
    }

    /// Tells the cluster that this thread block runs and has made its barriers: it takes sums, where they lie beside
    /// the stages.
    #[inline(always)]
    pub(super) fn ready() {
        if CUT > 1 && !Self::OVER_STAGES {
            cluster::arrive_relaxed();
        }
    }

    /// How many of a part's stages fit into the ring at once.
    #[inline(always)]
    pub(super) fn ahead(count: u32) -> u32 {
        let most = Self::STAGES as u32;
        if count < most { count } else { most }
    }

    /// Those that copy make the barriers, and start as many stages as fit before the others know.
    #[inline(always)]
    pub(super) fn begin(p: &DenseParams, at: u64, spot: impl Spot) {
        let [from, count] = Self::part(p);
        let begun = spot.begun();
        if !begun && Self::sets_up() {
            Self::set_up(at, L::fills(Self::TEAM as u32));
        }
        Self::together();
        Self::ready();
        if !begun && Self::starts() {
            grid::wait_dependency();
            let corner = Self::corner(spot);
            let ahead = Self::ahead(count);
            Self::start::<false, BOTH>(p, (at, spot), corner, from, 0, ahead, (0, 0));
        }
        // Together to the barrier of all threads.
        warp::sync(u32::MAX);
    }

    /// Those that copy, once the ring has been filled.
    #[inline(always)]
    pub(super) fn go_on(p: &DenseParams, at: u64, spot: impl Spot) {
        let [from, count] = Self::part(p);
        if Self::starts() {
            let corner = Self::corner(spot);
            let ahead = Self::ahead(count);
            Self::start::<true, BOTH>(p, (at, spot), corner, from, ahead, count, (0, 0));
            L::wait_own();
        }
        warp::sync(u32::MAX);
    }

    /// Starts the copies of all tiles of this thread block, rows of tiles a grid apart while there are any `inside`: the
    /// stages of the next are on their way while one is stored. `begun`: stages of the first tile that have been started.
    /// Those that start copies.
    #[cfg(any(
        module = "dense_conv",
        module = "dense_conv_mma",
        module = "dense_live",
        module = "dense_live_mma",
        not(target_arch = "nvptx64")
    ))]
    #[inline(always)]
    pub(super) fn copy_all<S: Spot>(
        p: &DenseParams,
        at: u64,
        begun: u32,
        inside: impl Fn(u32) -> bool,
        spot: impl Fn(u32) -> S,
    ) {
        let left = Self::left();
        let mut ring = Ring::<Self>::producer();
        let mut stage = 0;
        while stage < begun {
            ring.advance();
            stage += 1;
        }
        let mut down = gpu::block_y();
        while inside(down) {
            let spot = spot(down);
            let top = down * Self::ROWS as u32;
            while stage < p.stages {
                let slot = ring.wait_empty();
                let k = stage * Self::DEPTH as u32;
                Self::copy::<BOTH>(p, (at, spot), Self::team(), [top, left], k, slot);
                ring.advance();
                stage += 1;
            }
            stage = 0;
            down += gpu::grid_y();
        }
        L::wait_own();
    }
}
