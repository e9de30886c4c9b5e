//! A dense product of matrices that do not fill the GPU with large tiles: a thread block for a part of a tile along k,
//! a warp that starts copies or a warpgroup that copies, warpgroups of 64 rows that multiply. The first copy goes out as
//! soon as its barrier is made, and the sums of a tile's parts meet in shared memory (`out`).

#[cfg(any(module = "dense_conv", module = "dense_conv_mma", not(target_arch = "nvptx64")))]
mod conv;
mod copies;
#[cfg(any(module = "dense_csr", module = "dense_csr_mma", not(target_arch = "nvptx64")))]
mod csr;
mod elem;
mod lines;
#[cfg(any(module = "dense_live", module = "dense_live_mma", not(target_arch = "nvptx64")))]
mod live;
mod out;
mod undivided;

use crate::abi::part_start;
use crate::device::prelude::*;
use crate::device::stages::NONE;
use crate::families::gemm::abi::*;
use elem::DenseElem;

/// Where the tile of a thread block lies, how its operands are read, and what was done for it before it is come to.
trait Spot: Copy {
    /// Offset of the biases of its columns in shared memory, where they lie there; lines of C can be stored then.
    const BIASES: Option<usize> = None;
    /// The row of tiles, which is asked for where it is needed.
    fn down(self) -> u32;
    /// The barriers are made, and the first stages are on their way.
    #[inline(always)]
    fn begun(self) -> bool {
        false
    }
    /// Starts the copy of the rows of A from `top` on, `k` deep, to shared `to`.
    #[inline(always)]
    fn bring_a<L: Loader>(
        self,
        team: Team,
        to: u32,
        map: (u64, &MapWords),
        [k, top]: [u32; 2],
        shape: Shape,
        full: u32,
    ) {
        L::tile(team, to, map, [k, top], shape, full);
    }
    /// The same of the rows of B from `k` on, `left` across.
    #[inline(always)]
    fn bring_b<L: Loader>(
        self,
        team: Team,
        to: u32,
        map: (u64, &MapWords),
        [left, k]: [u32; 2],
        shape: Shape,
        full: u32,
    ) {
        L::tile(team, to, map, [left, k], shape, full);
    }
}

/// A thread block for each tile.
#[derive(Clone, Copy)]
struct Each;

impl Spot for Each {
    #[inline(always)]
    fn down(self) -> u32 {
        gpu::block_y()
    }
}

impl<
    const GROUPS: usize,
    const CHUNKS: usize,
    const CUT: usize,
    const BYTES: usize,
    A: AtomInfo,
    L: LoaderInfo,
> Stages for DenseTile<GROUPS, CHUNKS, CUT, BYTES, A, L>
{
    /// A stage is the warpgroups' own tiles of shared memory, then those that all multiply them with.
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<
    const GROUPS: usize,
    const CHUNKS: usize,
    const CUT: usize,
    const BYTES: usize,
    A: Multiply,
    L: Loader,
> DenseTile<GROUPS, CHUNKS, CUT, BYTES, A, L>
{
    /// Barrier that says: the sums of all parts have arrived.
    #[inline(always)]
    fn summed() -> u32 {
        Self::full(2 * Self::STAGES as u32)
    }

    /// First row and column of this thread block's tile, in row `down` of tiles.
    #[inline(always)]
    fn corner(spot: impl Spot) -> [u32; 2] {
        let corner = [spot.down() * Self::ROWS as u32, Self::left()];
        // Here and now: the copies of each stage would compute it again, and they are what a stage waits for.
        corner.map(warp::opaque)
    }

    #[inline(always)]
    fn left() -> u32 {
        gpu::block_x() / CUT as u32 * Self::COLUMNS
    }

    /// This thread block's first stage, and how many it has.
    #[inline(always)]
    fn part(p: &DenseParams) -> [u32; 2] {
        if CUT == 1 {
            return [0, p.stages];
        }
        let from = |rank: u32| part_start(p.stages, CUT as u32, rank);
        let rank = cluster::rank();
        [from(rank), from(rank + 1) - from(rank)]
    }

    /// Makes the barriers and fetches the tensor maps; one thread. So many arrivals fill a stage.
    #[inline(always)]
    fn set_up(at: u64, fill: u32) {
        L::prefetch_maps::<2>(at);
        let mut slot = 0;
        while slot < Self::STAGES as u32 {
            barrier::init(Self::full(slot), fill);
            barrier::init(Self::empty(slot), Self::WARPS as u32);
            slot += 1;
        }
        if CUT > 1 {
            barrier::init(Self::summed(), Self::WARPS as u32 + 1);
        }
        barrier::init_fence();
        if CUT > 1 {
            barrier::arrive_expect_tx(Self::summed(), Self::FROM_OTHERS);
        }
    }

    /// Ends the barriers, once all that they count has come and nobody waits; one thread. [`Self::set_up`] may make
    /// them again.
    #[inline(always)]
    fn take_down() {
        let mut slot = 0;
        while slot < Self::STAGES as u32 {
            barrier::invalidate(Self::full(slot));
            barrier::invalidate(Self::empty(slot));
            slot += 1;
        }
        if CUT > 1 {
            barrier::invalidate(Self::summed());
        }
    }

    /// A warpgroup's 64 rows, summed over this thread block's part of k. `FILLED`: A is not copied by the copy engine.
    #[inline(always)]
    fn multiply<E: DenseElem, const FILLED: bool>(p: &DenseParams) -> Acc<CHUNKS> {
        let mut acc = Acc::<CHUNKS>::zero();
        let [_, count] = Self::part(p);
        if count == 0 {
            return acc;
        }
        if !A::ASYNCHRONOUS {
            Self::sum::<E>(&mut acc, &mut Ring::<Self>::consumer(), count);
            return acc;
        }
        let mut ring = (0, 0);
        let mut pending = NONE;
        let mut own = Self::arrived::<E, FILLED>(ring);
        let mut s = 1;
        loop {
            let [smem, b_tile] = Self::parts_of(ring.0);
            E::stage::<A, CHUNKS>(&mut acc, smem, &own, b_tile);
            A::commit();
            if s == count {
                break;
            }
            let slot = ring.0;
            ring = Self::next(ring);
            if Self::TRANSPOSED {
                // While the Tensor Cores work: they read registers, and the next stage's are others.
                let next = Self::arrived::<E, FILLED>(ring);
                A::wait::<CHUNKS, 0>(&mut acc);
                E::keep(&own);
                Self::release_pending(slot);
                own = next;
            } else {
                A::wait::<CHUNKS, 1>(&mut acc);
                Self::release_pending(pending);
                pending = slot;
                own = Self::arrived::<E, FILLED>(ring);
            }
            s += 1;
        }
        A::wait::<CHUNKS, 0>(&mut acc);
        acc
    }

    /// Adds the products of so many stages to a warpgroup's 64 rows.
    #[inline(always)]
    fn sum<E: DenseElem>(acc: &mut Acc<CHUNKS>, ring: &mut Ring<Self>, count: u32) {
        let mut stage = 0;
        while stage < count {
            let slot = ring.wait_full();
            let [smem, b_tile] = Self::parts_of(slot);
            E::stage::<A, CHUNKS>(acc, smem, &E::own::<L>(smem), b_tile);
            ring.issued::<A, _>(acc);
            ring.advance();
            stage += 1;
        }
    }

    /// Multiplies and stores those tiles; the warps that multiply.
    #[cfg(any(
        module = "dense_conv",
        module = "dense_conv_mma",
        module = "dense_live",
        module = "dense_live_mma",
        not(target_arch = "nvptx64")
    ))]
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
            ring.drain::<A, _>(&mut acc);
            Self::epilogue::<E, _>(p, &acc, spot(down));
            down += gpu::grid_y();
        }
    }

    /// This warpgroup's own tile of shared memory of a stage, and the tile of B.
    #[inline(always)]
    fn parts_of(slot: u32) -> [u32; 2] {
        let group = gpu::thread() / 128;
        let stage = Self::stage(slot);
        [stage + group * SMEM_TILE as u32, stage + (GROUPS * SMEM_TILE) as u32]
    }

    /// Waits for a stage; what this thread needs of it in registers.
    #[inline(always)]
    fn arrived<E: DenseElem, const FILLED: bool>(ring: (u32, u32)) -> E::Own {
        barrier::wait(Self::full(ring.0), ring.1);
        if FILLED {
            // By ordinary stores. Who stored would wait here for loads as well.
            A::fence_proxy_async();
        }
        E::own::<L>(Self::parts_of(ring.0)[0])
    }
}

impl<
    const GROUPS: usize,
    const CHUNKS: usize,
    const CUT: usize,
    const BYTES: usize,
    A: Multiply,
    L: Loader,
> DenseTile<GROUPS, CHUNKS, CUT, BYTES, A, L>
{
    /// This thread block's tile where all warps copy.
    #[inline(always)]
    fn undivided_tile<E: DenseElem>(p: &DenseParams, at: u64) {
        if gpu::thread() == 0 {
            Self::set_up(at, L::fills(Self::TEAM as u32));
        }
        gpu::sync_threads();
        let own = gpu::block_y();
        Self::undivided::<E, _>(p, at, |down| down == own, |_| Each);
    }

    /// This thread block's tile. All threads.
    #[inline(always)]
    fn tile<E: DenseElem>(p: &DenseParams, at: u64, spot: impl Spot) {
        // Said by one lane for all, so that ptxas knows it to be the same in a warp: otherwise the descriptors of
        // `wgmma` are computed in registers of each lane, and every product waits for them.
        let warp = warp::uniform(gpu::thread() / 32);
        let copies = warp >= Self::WARPS as u32;
        if copies {
            Self::begin(p, at, spot);
        } else {
            Self::ready();
        }
        // One barrier for all threads: the barriers of the ring are made.
        gpu::sync_threads();
        if copies {
            Self::go_on(p, at, spot);
            Self::stand_by();
        } else {
            let acc = Self::multiply::<E, false>(p);
            // Without a stage nothing was waited for.
            grid::wait_dependency();
            Self::epilogue::<E, _>(p, &acc, spot);
        }
    }
}

impl<
    W: WalkInfo,
    E: DenseElem,
    const GROUPS: usize,
    const CHUNKS: usize,
    const CUT: usize,
    const BYTES: usize,
    A: Multiply,
    L: Loader,
> Kernel<W, E, DenseParams> for DenseTile<GROUPS, CHUNKS, CUT, BYTES, A, L>
{
    #[inline(always)]
    unsafe fn run(p: &DenseParams, at: u64) {
        grid::launch_dependents();
        if Self::UNDIVIDED {
            Self::undivided_tile::<E>(p, at);
        } else {
            Self::tile::<E>(p, at, Each);
        }
    }
}
