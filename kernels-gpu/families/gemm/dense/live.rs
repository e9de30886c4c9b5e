//! The same product for rows whose number is known on the device: module `dense_live`. What the launch ahead does not
//! write, the weights and their biases, is on its way before that has ended.

use super::{DenseElem, ONLY_A, ONLY_B, Spot};
use crate::device::prelude::*;
use crate::families::gemm::abi::*;

impl<const GROUPS: usize, const CHUNKS: usize, const CUT: usize> Spot
    for LiveTile<GROUPS, CHUNKS, CUT>
{
    const BIASES: Option<usize> = Some(Self::BIASES);
    /// In shared memory: registers are the sums'.
    #[inline(always)]
    fn down(self) -> u32 {
        copy::load_shared_b32(copy::arena() + Self::DOWN as u32)
    }
    /// The first tile of a thread block.
    #[inline(always)]
    fn begun(self) -> bool {
        self.down() == gpu::block_y()
    }
}

/// A tile of row `down` of tiles, not cut along k.
#[derive(Clone, Copy)]
struct Whole<const GROUPS: usize, const CHUNKS: usize> {
    down: u32,
}

impl<const GROUPS: usize, const CHUNKS: usize> Spot for Whole<GROUPS, CHUNKS> {
    const BIASES: Option<usize> = Some(LiveTile::<GROUPS, CHUNKS, 1>::BIASES);
    #[inline(always)]
    fn down(self) -> u32 {
        self.down
    }
}

impl<const GROUPS: usize, const CHUNKS: usize, const CUT: usize> LiveTile<GROUPS, CHUNKS, CUT> {
    /// Goes to another row of tiles; one thread.
    #[inline(always)]
    fn go_to(down: u32) {
        copy::store_shared_b32(copy::arena() + Self::DOWN as u32, down);
    }

    /// The barriers and the first tile's first stages: B before the launch ahead has ended, which does not write it.
    /// One lane of the warp that copies.
    #[inline(always)]
    fn start_ahead(p: &DenseParams, at: u64) {
        let early = p.early != 0;
        let known = global::load_b32_fresh(p.live, early);
        DenseTile::<GROUPS, CHUNKS, CUT>::set_up(at, 1);
        let [from, count] = DenseTile::<GROUPS, CHUNKS, CUT>::part(p);
        let ahead = DenseTile::<GROUPS, CHUNKS, CUT>::ahead(count);
        let high = DenseTile::<GROUPS, CHUNKS, CUT>::ROWS as u32;
        let corner = [gpu::block_y() * high, DenseTile::<GROUPS, CHUNKS, CUT>::left()];
        DenseTile::<GROUPS, CHUNKS, CUT>::start::<false, ONLY_B>(
            (at, Self),
            corner,
            from,
            0,
            ahead,
            (0, 0),
        );
        grid::wait_dependency();
        let rows = global::load_b32_fresh(p.live, !early) | known;
        let rows = rows.min(p.m);
        copy::store_shared_b32(copy::arena() + Self::LIVE as u32, rows);
        if corner[0] < rows {
            DenseTile::<GROUPS, CHUNKS, CUT>::start::<false, ONLY_A>(
                (at, Self),
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

    /// Waits for B, where no tile is computed: shared memory is not left before it has come.
    #[inline(always)]
    fn drain(stages: u32) {
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
        let first = DenseTile::<GROUPS, CHUNKS, CUT>::BARRIERS as u32;
        copy::arena() + first + slot * 8
    }

    /// The biases of the tile's columns; the warps that multiply.
    #[inline(always)]
    fn fetch_biases<E: Elem>(p: &DenseParams) {
        let left = DenseTile::<GROUPS, CHUNKS, CUT>::left();
        let mut i = gpu::thread();
        while i < Self::COLUMNS {
            let valid = p.flags & FLAG_BIAS_COLUMNS != 0 && left + i < p.n;
            let [bias, ..] = E::load_fresh(p.bias + (left + i) as u64 * 2, valid);
            copy::store_shared_b16(copy::arena() + Self::BIASES as u32 + i * 2, bias);
            i += 128 * GROUPS as u32;
        }
    }

    /// Is there a row in that row of tiles? The same for all threads of a cluster.
    #[inline(always)]
    fn reaches(down: u32) -> bool {
        let rows = copy::load_shared_b32(copy::arena() + Self::LIVE as u32);
        let high = DenseTile::<GROUPS, CHUNKS, CUT>::ROWS as u32;
        down * high < rows
    }
}

impl<W: WalkInfo, E: DenseElem, const GROUPS: usize, const CHUNKS: usize, const CUT: usize>
    Kernel<W, E, DenseParams> for LiveTile<GROUPS, CHUNKS, CUT>
{
    #[inline(always)]
    unsafe fn run(p: &DenseParams, at: u64) {
        if CUT > 1 && gpu::thread() == 0 {
            Self::go_to(gpu::block_y());
        }
        let warp = warp::shuffle::<32>(gpu::thread() / 32, 0, u32::MAX);
        let copies = warp >= DenseTile::<GROUPS, CHUNKS, CUT>::WARPS as u32;
        if copies {
            if warp::elected() {
                Self::start_ahead(p, at);
            }
            warp::sync_lanes(u32::MAX);
        } else {
            Self::fetch_biases::<E>(p);
        }
        grid::wait_dependency();
        // Not earlier: the next kernel may take it that what this one waited for has ended.
        grid::launch_dependents();
        gpu::sync_threads();
        // All threads of a cluster alike: nobody waits for those that leave.
        if !Self::reaches(gpu::block_y()) {
            return;
        }
        if CUT == 1 {
            let spot = |down| Whole::<GROUPS, CHUNKS> { down };
            if !copies {
                DenseTile::<GROUPS, CHUNKS, CUT>::multiply_all::<E, _>(p, Self::reaches, spot);
            } else if warp::elected() {
                let begun = DenseTile::<GROUPS, CHUNKS, CUT>::ahead(p.stages);
                DenseTile::<GROUPS, CHUNKS, CUT>::copy_all(p, at, begun, Self::reaches, spot);
            }
            return;
        }
        loop {
            DenseTile::<GROUPS, CHUNKS, CUT>::tile::<E>(p, at, Self);
            let next = Self.down() + gpu::grid_y();
            if !Self::reaches(next) {
                return;
            }
            // The ring is made anew: the stages have been read, by whoever reads them, before they are written.
            barrier::fence_copies();
            cluster::arrive();
            cluster::wait();
            // Asked again: there is no register for the answer while sums are.
            if gpu::rematerialize_thread() == 0 {
                Self::go_to(next);
                DenseTile::<GROUPS, CHUNKS, CUT>::take_down();
            }
            gpu::sync_threads();
        }
    }
}
