//! Copies of a tile's stages: started by one lane with the copy engine, otherwise by many threads.

use super::{DenseTile, Spot};
use crate::device::prelude::*;
use crate::families::gemm::abi::*;

/// Operands of a stage to copy: both, only A, or only B.
pub(super) const BOTH: u32 = 0;
pub(super) const ONLY_A: u32 = 1;
pub(super) const ONLY_B: u32 = 2;
/// Only B, with its own arrival: other threads fill the stages with A.
pub(super) const B_ARRIVES: u32 = 3;

/// Index of the named barrier of all copying threads.
const COPYING: u32 = 1;

impl<const CHUNKS: usize, F: DenseForm<A: Multiply, L: Loader>> DenseTile<CHUNKS, F> {
    /// Threads that copy together.
    #[inline(always)]
    pub(super) fn team() -> Team {
        let first = if Self::UNDIVIDED { 0 } else { Self::WARPS * 32 };
        Team { thread: gpu::thread() - first, threads: Self::TEAM }
    }

    /// Returns whether this thread starts copies. With the copy engine this is one lane, which waits for no other
    /// thread between stages. Otherwise all copying threads start copies.
    #[inline(always)]
    pub(super) fn starts() -> bool {
        !F::L::BY_ONE || warp::elect_one()
    }

    /// Returns whether this is the copying thread that initializes the barriers.
    #[inline(always)]
    pub(super) fn sets_up() -> bool {
        if F::L::BY_ONE { warp::elect_one() } else { Self::team().thread == 0 }
    }

    /// Synchronizes all copying threads.
    #[inline(always)]
    pub(super) fn together() {
        if Self::PRODUCER_THREADS == 32 {
            warp::sync(u32::MAX);
        } else {
            barrier::sync_named(COPYING, Self::PRODUCER_THREADS);
        }
    }

    /// Starts the copies of stages `from..to` of this thread block's part; `ring` is the position of the first. Called
    /// by the threads that start copies. `FREED`: the ring was filled once, so each copy waits for a free stage.
    #[inline(always)]
    pub(super) fn start<const FREED: bool, const WHAT: u32>(
        p: &DenseParams,
        (at, spot): (Maps, impl Spot),
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
                Self::empty(ring.0).wait(ring.1);
            }
            let k = (first + s) * Self::DEPTH as u32;
            Self::copy::<WHAT>(p, (at, spot), Self::team(), corner, k, ring.0);
            ring = Self::next(ring);
            s += 1;
        }
    }

    /// Starts the copies of the stage at depth `k`. Called by the threads that start copies.
    #[inline(always)]
    pub(super) fn copy<const WHAT: u32>(
        p: &DenseParams,
        (at, spot): (Maps, impl Spot),
        team: Team,
        [top, left]: [u32; 2],
        k: u32,
        slot: u32,
    ) {
        let (stage, full) = (Self::stage(slot), Self::full(slot));
        // Without the copy engine, threads arrive after their copies.
        match WHAT {
            _ if !F::L::BY_ONE => {}
            BOTH => full.arrive_expect_tx(Self::STAGE as u32),
            ONLY_A => full.arrive_expect_tx(Self::STAGE_OF_A as u32),
            B_ARRIVES => full.arrive_expect_tx((Self::STAGE - Self::STAGE_OF_A) as u32),
            // The copy of A arrives for both: the stage is full when A is complete as well.
            _ => full.expect_tx((Self::STAGE - Self::STAGE_OF_A) as u32),
        }
        let b_tile = stage.bytes((F::GROUPS * SMEM_TILE) as u32);
        let (a, b) = if Self::TRANSPOSED { (b_tile, stage) } else { (stage, b_tile) };
        if WHAT == BOTH || WHAT == ONLY_A {
            let map = (at.map(0), &p.a_map);
            spot.bring_a::<F::L>(team, a, map, [k, top], Self::shape(Self::ROWS), full);
        }
        if WHAT != ONLY_A {
            // B is copied in pieces of 128 bytes a row.
            let wide = Self::ACROSS as u32;
            unroll!(c < Self::COLUMNS as usize / Self::ACROSS, {
                let to = b.bytes((c * Self::DEPTH * PANEL_BYTES) as u32);
                let (map, place) = ((at.map(1), &p.b_map), [left + wide * c as u32, k]);
                spot.bring_b::<F::L>(team, to, map, place, Self::shape(Self::DEPTH), full);
            });
        }
        if WHAT != ONLY_B {
            F::L::started(full, team.thread);
        }
    }

    /// Shape of `rows` rows of 128 bytes.
    #[inline(always)]
    fn shape(rows: usize) -> Shape {
        Shape { rows, row_bytes: PANEL_BYTES, element: F::BYTES }
    }

    /// Tells the cluster that this thread block runs and has initialized its barriers. It can receive sums if they do
    /// not overwrite the stages.
    #[inline(always)]
    pub(super) fn ready() {
        if F::CUT > 1 && !Self::OVER_STAGES {
            cluster::arrive_relaxed();
        }
    }

    /// Number of a part's stages that fit into the ring at once.
    #[inline(always)]
    pub(super) fn ahead(count: u32) -> u32 {
        let most = Self::STAGES as u32;
        if count < most { count } else { most }
    }

    /// Initializes the barriers and starts as many stages as fit, before the other warps synchronize. Called by the
    /// copying warps.
    #[inline(always)]
    pub(super) fn begin(p: &DenseParams, at: Maps, spot: impl Spot) {
        let [from, count] = Self::part(p);
        let begun = spot.begun();
        if !begun && Self::sets_up() {
            Self::set_up(at, F::L::fills(Self::TEAM));
        }
        Self::together();
        Self::ready();
        if !begun && Self::starts() {
            grid::wait_dependency();
            let corner = Self::corner(spot);
            let ahead = Self::ahead(count);
            Self::start::<false, BOTH>(p, (at, spot), corner, from, 0, ahead, (0, 0));
        }
        // The lanes reconverge before the barrier of all threads.
        warp::sync(u32::MAX);
    }

    /// Copies the stages after the first filling of the ring. Called by the copying warps.
    #[inline(always)]
    pub(super) fn go_on(p: &DenseParams, at: Maps, spot: impl Spot) {
        let [from, count] = Self::part(p);
        if Self::starts() {
            let corner = Self::corner(spot);
            let ahead = Self::ahead(count);
            Self::start::<true, BOTH>(p, (at, spot), corner, from, ahead, count, (0, 0));
            F::L::wait_own();
        }
        warp::sync(u32::MAX);
    }

    /// Starts the copies of all tiles of this thread block, in rows of tiles a grid apart while they are `inside`. The
    /// stages of the next tile are copied while a tile is stored. `begun`: stages of the first tile that are already
    /// started. Called by the threads that start copies.
    #[inline(always)]
    pub(super) fn copy_all<S: Spot>(
        p: &DenseParams,
        at: Maps,
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
        F::L::wait_own();
    }
}
