//! Dense product for matrices that do not fill the GPU with large tiles. Each thread block computes a tile, or a part
//! of it along k. One warp, or a warpgroup, starts copies; each consumer warpgroup multiplies 64 rows. The first copy
//! starts as soon as its barrier is initialized. A cluster adds the sums of a tile's parts in shared memory (`out`).

#[cfg(any(module = "dense_conv", not(target_arch = "nvptx64")))]
mod conv;
mod copies;
#[cfg(any(module = "dense_csr", not(target_arch = "nvptx64")))]
mod csr;
mod elem;
mod lines;
#[cfg(any(module = "dense_live", not(target_arch = "nvptx64")))]
mod live;
mod out;
mod undivided;

use crate::abi::part_start;
use crate::device::prelude::*;
use crate::device::stages::NONE;
use crate::families::gemm::abi::*;
use elem::DenseElem;

/// Position of a thread block's tile, the loads of its operands, and the work done before the tile starts.
trait Spot: Copy {
    /// Offset of the biases of the tile's columns in shared memory, if they are stored there. Then C allows 16-byte
    /// stores.
    const BIASES: Option<usize> = None;
    /// Index of the row of tiles. It is read where it is needed.
    fn down(self) -> u32;
    /// Returns whether the barriers are initialized and the first stages are being copied.
    #[inline(always)]
    fn begun(self) -> bool {
        false
    }
    /// Starts the copy of the rows of A from `top` on, at depth `k`, to shared memory at `to`.
    #[inline(always)]
    fn bring_a<L: Loader>(
        self,
        team: Team,
        to: Shared<u8>,
        map: (TensorMap, &MapWords),
        [k, top]: [u32; 2],
        shape: Shape,
        full: Shared<Mbarrier>,
    ) {
        L::tile(team, to, map, [k, top], shape, full);
    }
    /// Starts the copy of the rows of B from `k` on, at column `left`, to shared memory at `to`.
    #[inline(always)]
    fn bring_b<L: Loader>(
        self,
        team: Team,
        to: Shared<u8>,
        map: (TensorMap, &MapWords),
        [left, k]: [u32; 2],
        shape: Shape,
        full: Shared<Mbarrier>,
    ) {
        L::tile(team, to, map, [left, k], shape, full);
    }
}

/// One thread block for each tile.
#[derive(Clone, Copy)]
struct Each;

impl Spot for Each {
    #[inline(always)]
    fn down(self) -> u32 {
        gpu::block_y()
    }
}

impl<const CHUNKS: usize, F: DenseForm> Stages for DenseTile<CHUNKS, F> {
    /// A stage holds one tile for each warpgroup, then the tiles that all warpgroups share.
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<const CHUNKS: usize, F: DenseForm<A: Multiply, L: Loader>> DenseTile<CHUNKS, F> {
    /// Barrier that completes when the sums of all parts have arrived.
    #[inline(always)]
    fn summed() -> Shared<Mbarrier> {
        Self::full(2 * Self::STAGES as u32)
    }

    /// First row and column of this thread block's tile.
    #[inline(always)]
    fn corner(spot: impl Spot) -> [u32; 2] {
        let corner = [spot.down() * Self::ROWS as u32, Self::left()];
        // `opaque` computes the corner here, once. Otherwise the copies of each stage compute it again, and delay the
        // stage.
        corner.map(warp::opaque)
    }

    #[inline(always)]
    fn left() -> u32 {
        gpu::block_x() / F::CUT as u32 * Self::COLUMNS
    }

    /// First stage of this thread block, and its number of stages.
    #[inline(always)]
    fn part(p: &DenseParams) -> [u32; 2] {
        if F::CUT == 1 {
            return [0, p.stages];
        }
        let from = |rank: u32| part_start(p.stages, F::CUT as u32, rank);
        let rank = cluster::rank();
        [from(rank), from(rank + 1) - from(rank)]
    }

    /// Initializes the barriers and prefetches the tensor maps. Called by one thread. `fill`: arrivals that fill a
    /// stage.
    #[inline(always)]
    fn set_up(at: Maps, fill: u32) {
        F::L::prefetch_maps::<2>(at);
        let mut slot = 0;
        while slot < Self::STAGES as u32 {
            Self::full(slot).init(fill);
            Self::empty(slot).init(Self::WARPS);
            slot += 1;
        }
        if F::CUT > 1 {
            Self::summed().init(Self::WARPS + 1);
        }
        barrier::init_fence();
        if F::CUT > 1 {
            Self::summed().arrive_expect_tx(Self::FROM_OTHERS);
        }
    }

    /// Invalidates the barriers after all arrivals, when no thread waits. Called by one thread. [`Self::set_up`] may
    /// initialize them again.
    #[inline(always)]
    fn take_down() {
        let mut slot = 0;
        while slot < Self::STAGES as u32 {
            Self::full(slot).invalidate();
            Self::empty(slot).invalidate();
            slot += 1;
        }
        if F::CUT > 1 {
            Self::summed().invalidate();
        }
    }

    /// Sums of a warpgroup's 64 rows over this thread block's part of k. `FILLED`: A is not copied by the copy engine.
    #[inline(always)]
    fn multiply<E: DenseElem, const FILLED: bool>(p: &DenseParams) -> Acc<CHUNKS> {
        let mut acc = Acc::<CHUNKS>::zero();
        let [_, count] = Self::part(p);
        if count == 0 {
            return acc;
        }
        if !F::A::ASYNCHRONOUS {
            Self::sum::<E>(&mut acc, &mut Ring::<Self>::consumer(), count);
            return acc;
        }
        let mut ring = (0, 0);
        let mut pending = NONE;
        let mut own = Self::arrived::<E, FILLED>(ring);
        let mut s = 1;
        loop {
            let [smem, b_tile] = Self::parts_of(ring.0);
            E::stage::<F::A, CHUNKS>(&mut acc, smem, &own, b_tile);
            F::A::commit();
            if s == count {
                break;
            }
            let slot = ring.0;
            ring = Self::next(ring);
            if Self::TRANSPOSED {
                // Overlaps with the Tensor Cores: they read other registers than those of the next stage.
                let next = Self::arrived::<E, FILLED>(ring);
                F::A::wait::<CHUNKS, 0>(&mut acc);
                E::keep(&own);
                Self::release(slot);
                own = next;
            } else {
                F::A::wait::<CHUNKS, 1>(&mut acc);
                Self::release_pending(pending);
                pending = slot;
                own = Self::arrived::<E, FILLED>(ring);
            }
            s += 1;
        }
        F::A::wait::<CHUNKS, 0>(&mut acc);
        acc
    }

    /// Adds the products of `count` stages to the sums of a warpgroup's 64 rows.
    #[inline(always)]
    fn sum<E: DenseElem>(acc: &mut Acc<CHUNKS>, ring: &mut Ring<Self>, count: u32) {
        let mut stage = 0;
        while stage < count {
            Self::add_stage::<E>(acc, ring);
            stage += 1;
        }
    }

    /// Adds the products of the next stage.
    #[inline(always)]
    fn add_stage<E: DenseElem>(acc: &mut Acc<CHUNKS>, ring: &mut Ring<Self>) {
        let [smem, b_tile] = Self::parts_of(ring.wait_full());
        E::stage::<F::A, CHUNKS>(acc, smem, &E::own::<F::L>(smem), b_tile);
        ring.issued::<F::A, _>(acc);
        ring.advance();
    }

    /// Multiplies and stores all tiles that are `inside`. Called by the consumer warps.
    #[inline(always)]
    fn multiply_all<E: DenseElem, S: Spot>(
        p: &DenseParams,
        inside: impl Fn(u32) -> bool,
        spot: impl Fn(u32) -> S,
    ) {
        let mut ring = Ring::<Self>::consumer();
        let mut down = gpu::block_y();
        while inside(down) {
            let mut acc = Acc::<CHUNKS>::zero();
            Self::sum::<E>(&mut acc, &mut ring, p.stages);
            ring.drain::<F::A, _>(&mut acc);
            Self::epilogue::<E, _>(p, &acc, spot(down));
            down += gpu::grid_y();
        }
    }

    /// Addresses in a stage: this warpgroup's own tile, and the tile that all warpgroups share.
    #[inline(always)]
    fn parts_of(slot: u32) -> [Shared<u8>; 2] {
        let group = gpu::thread() / 128;
        let stage = Self::stage(slot);
        [group * SMEM_TILE as u32, (F::GROUPS * SMEM_TILE) as u32].map(|byte| stage.bytes(byte))
    }

    /// Waits for a stage. Returns the registers that this thread needs from it.
    #[inline(always)]
    fn arrived<E: DenseElem, const FILLED: bool>(ring: (u32, u32)) -> E::Own {
        Self::full(ring.0).wait(ring.1);
        if FILLED {
            // Ordinary stores filled the stage. In the storing threads, this fence would also wait for their loads.
            F::A::fence_proxy_async();
        }
        E::own::<F::L>(Self::parts_of(ring.0)[0])
    }
}

impl<const CHUNKS: usize, F: DenseForm<A: Multiply, L: Loader>> DenseTile<CHUNKS, F> {
    /// Returns whether this warp copies. `uniform` tells ptxas that the value is the same in all lanes of a warp.
    /// Otherwise the descriptors of `wgmma` are computed in per-lane registers, and every product waits for them.
    #[inline(always)]
    fn copies() -> bool {
        warp::uniform(gpu::thread() / 32) >= Self::WARPS
    }

    /// Initializes the barriers and computes all tiles that are `inside`. Called by all threads.
    #[inline(always)]
    fn tiles<E: DenseElem, S: Spot>(
        p: &DenseParams,
        at: Maps,
        inside: impl Fn(u32) -> bool,
        spot: impl Fn(u32) -> S,
    ) {
        let copies = Self::UNDIVIDED || Self::copies();
        if copies && Self::sets_up() {
            Self::set_up(at, F::L::fills(Self::TEAM));
        }
        warp::sync(u32::MAX);
        gpu::sync_threads();
        grid::wait_dependency();
        Self::follow::<E, S>(p, at, (copies, 0), inside, spot);
    }

    /// Computes all tiles that are `inside`, in rows of tiles a grid apart, without a break: the stages of the next tile
    /// are copied while this one is stored. `begun`: stages of the first tile that are already started.
    #[inline(always)]
    fn follow<E: DenseElem, S: Spot>(
        p: &DenseParams,
        at: Maps,
        (copies, begun): (bool, u32),
        inside: impl Fn(u32) -> bool,
        spot: impl Fn(u32) -> S,
    ) {
        if Self::UNDIVIDED {
            Self::undivided::<E, S>(p, at, inside, spot);
        } else if !copies {
            Self::multiply_all::<E, S>(p, inside, spot);
        } else if Self::starts() {
            Self::copy_all(p, at, begun, inside, spot);
        }
    }

    /// Computes this thread block's tile. Called by all threads.
    #[inline(always)]
    fn tile<E: DenseElem>(p: &DenseParams, at: Maps, spot: impl Spot) {
        let copies = Self::copies();
        if copies {
            Self::begin(p, at, spot);
        } else {
            Self::ready();
        }
        // All threads synchronize once: the barriers of the ring are initialized.
        gpu::sync_threads();
        if copies {
            Self::go_on(p, at, spot);
            Self::stand_by();
        } else {
            let acc = Self::multiply::<E, false>(p);
            // A part without stages has not waited for any copy.
            grid::wait_dependency();
            Self::epilogue::<E, _>(p, &acc, spot);
        }
    }
}

impl<W: WalkInfo, E: DenseElem, const CHUNKS: usize, F: DenseForm<A: Multiply, L: Loader>>
    Kernel<W, E, DenseParams> for DenseTile<CHUNKS, F>
{
    #[inline(always)]
    unsafe fn run(p: &DenseParams, at: Maps) {
        grid::launch_dependents();
        if Self::UNDIVIDED {
            let own = gpu::block_y();
            Self::tiles::<E, _>(p, at, |down| down == own, |_| Each);
        } else {
            Self::tile::<E>(p, at, Each);
        }
    }
}
