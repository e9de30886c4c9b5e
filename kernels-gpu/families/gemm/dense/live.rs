//! Dense product for a number of rows that is known only on the device: module `dense_live`. The preceding launch does
//! not write the weights and their biases, so their loads start before it ends.

use core::marker::PhantomData;

use super::copies::{ONLY_A, ONLY_B};
use super::{DenseElem, Spot};
use crate::device::prelude::*;
use crate::families::gemm::abi::*;

/// Tile that a cluster splits along k, in the row of tiles whose index is in shared memory.
#[derive(Clone, Copy)]
struct Shared<const GROUPS: usize, const CHUNKS: usize, const CUT: usize, A, L>(
    PhantomData<(A, L)>,
);

impl<const GROUPS: usize, const CHUNKS: usize, const CUT: usize, A: Multiply, L: Loader> Spot
    for Shared<GROUPS, CHUNKS, CUT, A, L>
{
    const BIASES: Option<usize> = Some(LiveTile::<GROUPS, CHUNKS, CUT, A, L>::BIASES);
    /// Reads the index from shared memory: the accumulators need the registers.
    #[inline(always)]
    fn down(self) -> u32 {
        let at = LiveTile::<GROUPS, CHUNKS, CUT, A, L>::DOWN as u32;
        copy::ld_shared_b32(copy::dynamic_shared() + at)
    }
    /// Returns whether this is the first tile of a thread block.
    #[inline(always)]
    fn begun(self) -> bool {
        self.down() == gpu::block_y()
    }
}

/// Tile in row `down` of tiles, not split along k.
#[derive(Clone, Copy)]
struct Whole<const GROUPS: usize, const CHUNKS: usize, A, L> {
    down: u32,
    tile: PhantomData<(A, L)>,
}

impl<const GROUPS: usize, const CHUNKS: usize, A: Multiply, L: Loader> Spot
    for Whole<GROUPS, CHUNKS, A, L>
{
    const BIASES: Option<usize> = Some(LiveTile::<GROUPS, CHUNKS, 1, A, L>::BIASES);
    #[inline(always)]
    fn down(self) -> u32 {
        self.down
    }
}

impl<const GROUPS: usize, const CHUNKS: usize, const CUT: usize, A: Multiply, L: Loader>
    LiveTile<GROUPS, CHUNKS, CUT, A, L>
{
    #[inline(always)]
    fn spot() -> Shared<GROUPS, CHUNKS, CUT, A, L> {
        Shared(PhantomData)
    }

    /// Stores the index of the next row of tiles. Called by one thread.
    #[inline(always)]
    fn go_to(down: u32) {
        copy::st_shared_b32(copy::dynamic_shared() + Self::DOWN as u32, down);
    }

    /// Initializes the barriers and starts the first stages of the first tile. The copies of B start before the
    /// preceding launch ends, which does not write B. Called by the threads that start copies.
    #[inline(always)]
    fn start_ahead(p: &DenseParams, at: u64) {
        let early = p.early != 0;
        let known = global::ld_cg_b32(p.live, early);
        let copiers = DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::TEAM as u32;
        if L::BY_ONE || DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::sets_up() {
            DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::set_up(at, L::fills(copiers));
        }
        if !L::BY_ONE {
            DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::together();
        }
        let [from, count] = DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::part(p);
        let ahead = DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::ahead(count);
        let high = DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::ROWS as u32;
        let corner = [gpu::block_y() * high, DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::left()];
        DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::start::<false, ONLY_B>(
            p,
            (at, Self::spot()),
            corner,
            from,
            0,
            ahead,
            (0, 0),
        );
        grid::wait_dependency();
        let rows = global::ld_cg_b32(p.live, !early) | known;
        let rows = rows.min(p.m);
        copy::st_shared_b32(copy::dynamic_shared() + Self::LIVE as u32, rows);
        if corner[0] < rows {
            DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::start::<false, ONLY_A>(
                p,
                (at, Self::spot()),
                corner,
                from,
                0,
                ahead,
                (0, 0),
            );
        } else {
            Self::drain(ahead);
        }
    }

    /// Waits for B if no tile is computed: a thread block must not exit before its copies complete.
    #[inline(always)]
    fn drain(stages: u32) {
        if !L::BY_ONE {
            copy::cp_async_wait_all();
            return;
        }
        let mut slot = 0;
        while slot < stages {
            let full = Self::full(slot);
            barrier::arrive(full);
            barrier::wait(full, 0);
            slot += 1;
        }
    }

    #[inline(always)]
    fn full(slot: u32) -> u32 {
        let first = DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::BARRIERS as u32;
        copy::dynamic_shared() + first + slot * 8
    }

    /// Loads the biases of the tile's columns. Called by the warps that multiply.
    #[inline(always)]
    fn fetch_biases<E: Elem>(p: &DenseParams) {
        let left = DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::left();
        let mut i = gpu::thread();
        while i < Self::COLUMNS {
            let valid = p.flags & FLAG_BIAS_COLUMNS != 0 && left + i < p.n;
            let [bias, ..] = E::ld_cg(p.bias + (left + i) as u64 * 2, valid);
            copy::st_shared_b16(copy::dynamic_shared() + Self::BIASES as u32 + i * 2, bias);
            i += 128 * GROUPS as u32;
        }
    }

    /// Computes all tiles if all warps copy. No copy starts before the preceding launch ends.
    #[inline(always)]
    fn undivided<E: DenseElem>(p: &DenseParams, at: u64) {
        grid::wait_dependency();
        if gpu::thread() == 0 {
            let rows = global::ld_cg_b32(p.live, true).min(p.m);
            copy::st_shared_b32(copy::dynamic_shared() + Self::LIVE as u32, rows);
            let fill = L::fills(DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::TEAM as u32);
            DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::set_up(at, fill);
        }
        Self::fetch_biases::<E>(p);
        gpu::sync_threads();
        let spot = |down| Whole::<GROUPS, CHUNKS, A, L> { down, tile: PhantomData };
        DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::undivided::<E, _>(p, at, Self::reaches, spot);
    }

    /// Computes all tiles of a cluster that splits them along k, one after the other.
    #[inline(always)]
    fn cut_tiles<E: DenseElem>(p: &DenseParams, at: u64) {
        loop {
            DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::tile::<E>(p, at, Self::spot());
            let next = Self::spot().down() + gpu::grid_y();
            if !Self::reaches(next) {
                return;
            }
            // The ring starts again: the cluster has read the stages before they are overwritten.
            A::fence_proxy_async();
            cluster::arrive();
            cluster::wait();
            // Reads the thread index again: while accumulators are live, no register is free for the predicate.
            if gpu::opaque_thread() == 0 {
                Self::go_to(next);
                DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::take_down();
            }
            gpu::sync_threads();
        }
    }

    /// Returns whether row `down` of tiles contains a row of C. The result is the same in a whole cluster.
    #[inline(always)]
    fn reaches(down: u32) -> bool {
        let rows = copy::ld_shared_b32(copy::dynamic_shared() + Self::LIVE as u32);
        let high = DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::ROWS as u32;
        down * high < rows
    }
}

impl<
    W: WalkInfo,
    E: DenseElem,
    const GROUPS: usize,
    const CHUNKS: usize,
    const CUT: usize,
    A: Multiply,
    L: Loader,
> Kernel<W, E, DenseParams> for LiveTile<GROUPS, CHUNKS, CUT, A, L>
{
    #[inline(always)]
    unsafe fn run(p: &DenseParams, at: u64) {
        if DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::UNDIVIDED {
            return Self::undivided::<E>(p, at);
        }
        if CUT > 1 && gpu::thread() == 0 {
            Self::go_to(gpu::block_y());
        }
        let warp = warp::uniform(gpu::thread() / 32);
        let copies = warp >= DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::WARPS as u32;
        if copies {
            if DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::starts() {
                Self::start_ahead(p, at);
            }
            warp::sync(u32::MAX);
        } else {
            Self::fetch_biases::<E>(p);
        }
        grid::wait_dependency();
        // Not earlier: the dependent launch may assume that the launch awaited here has ended.
        grid::launch_dependents();
        gpu::sync_threads();
        // All threads of a cluster return together, so no thread waits for one that has exited.
        if !Self::reaches(gpu::block_y()) {
            return;
        }
        if CUT == 1 {
            let spot = |down| Whole::<GROUPS, CHUNKS, A, L> { down, tile: PhantomData };
            if !copies {
                DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::multiply_all::<E, _>(
                    p,
                    Self::reaches,
                    spot,
                );
            } else if DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::starts() {
                let begun = DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::ahead(p.stages);
                DenseTile::<GROUPS, CHUNKS, CUT, 2, A, L>::copy_all(
                    p,
                    at,
                    begun,
                    Self::reaches,
                    spot,
                );
            }
            return;
        }
        Self::cut_tiles::<E>(p, at);
    }
}
