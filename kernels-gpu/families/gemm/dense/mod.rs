//! A dense product of matrices that do not fill the GPU with large tiles: a thread block for a part of a tile along k,
//! a warp that starts copies or a warpgroup that copies, warpgroups of 64 rows that multiply. The first copy goes out as soon as its barrier is
//! made, and the sums of a tile's parts meet in shared memory (`out`).

#[cfg(any(module = "dense_conv", module = "dense_conv_mma", not(target_arch = "nvptx64")))]
mod conv;
#[cfg(any(module = "dense_csr", module = "dense_csr_mma", not(target_arch = "nvptx64")))]
mod csr;
mod elem;
mod lines;
#[cfg(any(module = "dense_live", module = "dense_live_mma", not(target_arch = "nvptx64")))]
mod live;
mod out;

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

/// What of a stage is copied.
const BOTH: u32 = 0;
const ONLY_A: u32 = 1;
const ONLY_B: u32 = 2;
/// B alone, of stages that others fill with A: it arrives for itself.
const B_ARRIVES: u32 = 3;

/// Number of the barrier of all threads that copy.
const COPYING: u32 = 1;

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
        corner.map(warp::rematerialize)
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
            barrier::arrive_expect(Self::summed(), Self::FROM_OTHERS);
        }
    }

    /// Ends the barriers, once all that they count has come and nobody waits; one thread. [`Self::set_up`] may make
    /// them again.
    #[inline(always)]
    fn take_down() {
        let mut slot = 0;
        while slot < Self::STAGES as u32 {
            barrier::end(Self::full(slot));
            barrier::end(Self::empty(slot));
            slot += 1;
        }
        if CUT > 1 {
            barrier::end(Self::summed());
        }
    }

    /// Threads that copy together.
    #[inline(always)]
    fn team() -> Team {
        Team { thread: gpu::thread() - Self::WARPS as u32 * 32, threads: Self::COPIERS as u32 }
    }

    /// Does this thread start copies? Of those that copy, one lane where the copy engine does the rest, which waits for
    /// nobody between one stage and the next; or all.
    #[inline(always)]
    fn starts() -> bool {
        !L::BY_ONE || warp::elected()
    }

    /// Is this the thread of those that copy which makes the barriers?
    #[inline(always)]
    fn sets_up() -> bool {
        if L::BY_ONE { warp::elected() } else { Self::team().thread == 0 }
    }

    /// Waits for all threads that copy.
    #[inline(always)]
    fn together() {
        if Self::COPIERS == 32 {
            warp::sync_lanes(u32::MAX);
        } else {
            barrier::sync_named(COPYING, Self::COPIERS as u32);
        }
    }

    /// Starts the copies of stages `from..to` of this thread block's part; `ring` is the place of the first. Those that
    /// start copies. `FREED`: the ring has been round once, and stages are waited for.
    #[inline(always)]
    fn start<const FREED: bool, const WHAT: u32>(
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
    fn copy<const WHAT: u32>(
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
            BOTH => barrier::arrive_expect(full, Self::STAGE as u32),
            ONLY_A => barrier::arrive_expect(full, Self::STAGE_OF_A as u32),
            B_ARRIVES => barrier::arrive_expect(full, (Self::STAGE - Self::STAGE_OF_A) as u32),
            // The stage is full when A has come as well: that arrives.
            _ => barrier::expect(full, (Self::STAGE - Self::STAGE_OF_A) as u32),
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
    fn ready() {
        if CUT > 1 && !Self::OVER_STAGES {
            cluster::arrive_relaxed();
        }
    }

    /// How many of a part's stages fit into the ring at once.
    #[inline(always)]
    fn ahead(count: u32) -> u32 {
        let most = Self::STAGES as u32;
        if count < most { count } else { most }
    }

    /// Those that copy make the barriers, and start as many stages as fit before the others know.
    #[inline(always)]
    fn begin(p: &DenseParams, at: u64, spot: impl Spot) {
        let [from, count] = Self::part(p);
        let begun = spot.begun();
        if !begun && Self::sets_up() {
            Self::set_up(at, L::fills(Self::COPIERS as u32));
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
        warp::sync_lanes(u32::MAX);
    }

    /// Those that copy, once the ring has been filled.
    #[inline(always)]
    fn go_on(p: &DenseParams, at: u64, spot: impl Spot) {
        let [from, count] = Self::part(p);
        if Self::starts() {
            let corner = Self::corner(spot);
            let ahead = Self::ahead(count);
            Self::start::<true, BOTH>(p, (at, spot), corner, from, ahead, count, (0, 0));
        }
        warp::sync_lanes(u32::MAX);
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
    fn copy_all<S: Spot>(
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
            A::fence_copies();
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
    /// This thread block's tile. All threads.
    #[inline(always)]
    fn tile<E: DenseElem>(p: &DenseParams, at: u64, spot: impl Spot) {
        // Said by one lane for all, so that ptxas knows it to be the same in a warp: otherwise the descriptors of
        // `wgmma` are computed in registers of each lane, and every product waits for them.
        let warp = warp::shuffle::<32>(gpu::thread() / 32, 0, u32::MAX);
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
        Self::tile::<E>(p, at, Each);
    }
}
