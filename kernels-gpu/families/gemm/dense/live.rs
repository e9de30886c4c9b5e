//! Dense product for a number of rows that is known only on the device: module `dense_live`. The preceding launch does
//! not write the weights and their biases, so their loads start before it ends.

use core::marker::PhantomData;

use super::copies::{ONLY_A, ONLY_B};
use super::{DenseElem, DenseTile, Spot};
use crate::device::prelude::*;
use crate::families::gemm::abi::*;

buffers! {
    // `nn::encoder` checks the shapes of the operands, and `discover::live_rows` allocates the
    // number of rows.
    unsafe DenseParams {
        bias<E: Elem>: E, Fresh;
        live: u32, Fresh;
    }
}

/// Word of a [`LiveTile`] at byte `offset` of dynamic shared memory.
#[inline(always)]
fn word(offset: usize) -> Shared<u32> {
    // SAFETY: the host launches with `shared_bytes` of the tile, which include its words.
    unsafe { Shared::dynamic(offset as u32) }
}

/// Tile that a cluster splits along k, in the row of tiles whose index is in shared memory.
#[derive(Clone, Copy)]
struct Split<const CHUNKS: usize, F>(PhantomData<F>);

impl<const CHUNKS: usize, F: DenseForm<A: Multiply, L: Loader>> Spot for Split<CHUNKS, F> {
    const BIASES: Option<usize> = Some(LiveTile::<CHUNKS, F>::BIASES);
    /// Reads the index from shared memory: the accumulators need the registers.
    #[inline(always)]
    fn down(self) -> u32 {
        word(LiveTile::<CHUNKS, F>::DOWN).ld()
    }
    /// Returns whether this is the first tile of a thread block.
    #[inline(always)]
    fn begun(self) -> bool {
        self.down() == gpu::block_y()
    }
}

/// Tile in row `down` of tiles, not split along k.
#[derive(Clone, Copy)]
struct Whole<const CHUNKS: usize, F> {
    down: u32,
    tile: PhantomData<F>,
}

impl<const CHUNKS: usize, F: DenseForm<A: Multiply, L: Loader>> Spot for Whole<CHUNKS, F> {
    const BIASES: Option<usize> = Some(LiveTile::<CHUNKS, F>::BIASES);
    #[inline(always)]
    fn down(self) -> u32 {
        self.down
    }
}

impl<const CHUNKS: usize, F: DenseForm<A: Multiply, L: Loader>> DenseTile<CHUNKS, F> {
    #[inline(always)]
    fn spot() -> Split<CHUNKS, F> {
        Split(PhantomData)
    }

    /// Stores the index of the next row of tiles. Called by one thread.
    #[inline(always)]
    fn go_to(down: u32) {
        word(LiveTile::<CHUNKS, F>::DOWN).st(down);
    }

    /// Initializes the barriers and starts the first stages of the first tile. The copies of B start before the
    /// preceding launch ends, which does not write B. Called by the threads that start copies.
    #[inline(always)]
    fn start_ahead(p: &DenseParams, at: Maps) {
        let early = p.early != 0;
        let known = p.live().ld_if(early);
        if F::L::BY_ONE || Self::sets_up() {
            Self::set_up(at, F::L::fills(Self::TEAM));
        }
        if !F::L::BY_ONE {
            Self::together();
        }
        let [from, count] = Self::part(p);
        let ahead = Self::ahead(count);
        let corner = [gpu::block_y() * Self::ROWS as u32, Self::left()];
        Self::start::<false, ONLY_B>(p, (at, Self::spot()), corner, from, 0, ahead, (0, 0));
        grid::wait_dependency();
        let rows = p.live().ld_if(!early) | known;
        let rows = rows.min(p.m);
        word(LiveTile::<CHUNKS, F>::LIVE).st(rows);
        if corner[0] < rows {
            Self::start::<false, ONLY_A>(p, (at, Self::spot()), corner, from, 0, ahead, (0, 0));
        } else {
            Self::drain(ahead);
        }
    }

    /// Waits for B if no tile is computed: a thread block must not exit before its copies complete.
    #[inline(always)]
    fn drain(stages: u32) {
        if !F::L::BY_ONE {
            copy::cp_async_wait_all();
            return;
        }
        let mut slot = 0;
        while slot < stages {
            let full = Self::full(slot);
            full.arrive();
            full.wait(0);
            slot += 1;
        }
    }

    /// Loads the biases of the tile's columns. Called by the warps that multiply.
    #[inline(always)]
    fn fetch_biases<E: Elem>(p: &DenseParams) {
        let left = Self::left();
        let mut i = gpu::thread();
        while i < Self::COLUMNS {
            let valid = p.flags & FLAG_BIAS_COLUMNS != 0 && left + i < p.n;
            let [bias, ..] = p.bias::<E>().at(left + i).ld_raw::<1>(valid);
            word(LiveTile::<CHUNKS, F>::BIASES).cast::<u16>().at(i).st(bias);
            i += 128 * F::GROUPS as u32;
        }
    }

    /// Computes all tiles if all warps copy. No copy starts before the preceding launch ends.
    #[inline(always)]
    fn undivided_live<E: DenseElem>(p: &DenseParams, at: Maps) {
        grid::wait_dependency();
        if gpu::thread() == 0 {
            let rows = p.live().ld().min(p.m);
            word(LiveTile::<CHUNKS, F>::LIVE).st(rows);
            Self::set_up(at, F::L::fills(Self::TEAM));
        }
        Self::fetch_biases::<E>(p);
        gpu::sync_threads();
        let spot = |down| Whole::<CHUNKS, F> { down, tile: PhantomData };
        Self::undivided::<E, _>(p, at, Self::reaches, spot);
    }

    /// Computes all tiles of a cluster that splits them along k, one after the other.
    #[inline(always)]
    fn cut_tiles<E: DenseElem>(p: &DenseParams, at: Maps) {
        loop {
            Self::tile::<E>(p, at, Self::spot());
            let next = Self::spot().down() + gpu::grid_y();
            if !Self::reaches(next) {
                return;
            }
            // The ring starts again: the cluster has read the stages before they are overwritten.
            F::A::fence_proxy_async();
            cluster::arrive();
            cluster::wait();
            // Reads the thread index again: while accumulators are live, no register is free for the predicate.
            if gpu::opaque_thread() == 0 {
                Self::go_to(next);
                Self::take_down();
            }
            gpu::sync_threads();
        }
    }

    /// Returns whether row `down` of tiles contains a row of C. The result is the same in a whole cluster.
    #[inline(always)]
    fn reaches(down: u32) -> bool {
        let rows = word(LiveTile::<CHUNKS, F>::LIVE).ld();
        down * (Self::ROWS as u32) < rows
    }

    /// Computes all tiles that contain some of the rows. Called by all threads.
    #[inline(always)]
    fn live<E: DenseElem>(p: &DenseParams, at: Maps) {
        if Self::UNDIVIDED {
            return Self::undivided_live::<E>(p, at);
        }
        if F::CUT > 1 && gpu::thread() == 0 {
            Self::go_to(gpu::block_y());
        }
        let copies = Self::copies();
        if copies {
            if Self::starts() {
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
        if F::CUT == 1 {
            let spot = |down| Whole::<CHUNKS, F> { down, tile: PhantomData };
            let begun = Self::ahead(p.stages);
            Self::follow::<E, _>(p, at, (copies, begun), Self::reaches, spot);
            return;
        }
        Self::cut_tiles::<E>(p, at);
    }
}

impl<W: WalkInfo, E: DenseElem, const CHUNKS: usize, F: DenseForm<A: Multiply, L: Loader>>
    Kernel<W, E, DenseParams> for LiveTile<CHUNKS, F>
{
    #[inline(always)]
    unsafe fn run(p: &DenseParams, at: Maps) {
        DenseTile::<CHUNKS, F>::live::<E>(p, at);
    }
}
