//! Products with 2:4 sparse A on sparse Tensor Cores. The grid is persistent: one thread block for each multiprocessor.
//! Warps 0 to 7 are two consumer warpgroups. Each computes `MA` x 64 rows and all `CHUNKS` x 64 columns of a tile of C.
//! Warps 8 to 11 are producers: one thread starts TMA copies, or all 128 threads start `cp.async`.
//! A stage contains A, `MA` x 128 rows of 64 bytes (64-byte swizzle), then B. B consists of `CHUNKS` shared-memory
//! tiles of 64 columns and 64 rows along k, contiguous along n (128-byte swizzle). 8-bit B is contiguous along k.
//! With `wgmma`:
//!
//! ```text
//! producer   wait empty[s] -> start the copies of stage s: stored values of A, and B -> full[s] completes
//! consumer   wait full[s] -> issue the products of s -> wait for those of s-1 -> release s-1
//!            while they run: metadata of the next two stages, global -> registers
//! tile end   wait for all products -> registers -> output buffer of the warpgroup -> C, 16 bytes a store
//! ```
//!
//! The producer copies stages of the next tile while C is stored. Both consumer warpgroups read the same B. A stage is
//! free when both have released it. No other barrier orders them, so one may multiply while the other stores C. With
//! `mma.sync`, a warp multiplies all rows of its warpgroup by a quarter of the columns. It releases s after its
//! products of s. Before the epilogue the warps exchange accumulators, so that each holds whole rows.
//!
//! The plan stores a copy of the metadata in the order of the lanes. The format stores one word for 32 columns of a
//! row. Loads of these words would take a quarter of the bandwidth of shared memory and L1. With `mma.sync`, a warp has
//! too few registers to load metadata ahead. Metadata is then part of the stage, in the order of the lanes.

#[cfg(any(module = "nm_narrow", feature = "cuda_std"))]
pub mod narrow;
mod producer;

use crate::device::epilogue::{Output, output};
use crate::device::fill::make_ring;
use crate::device::prelude::*;
use crate::device::ptx::wgmma_sparse;
use crate::device::stages::NONE;
use crate::device::store::StoreTile;
use crate::families::gemm::abi::*;

/// Registers of a thread of the producer warpgroup, and of the consumer warpgroups: 40 + 2 x 232 is three times the 168
/// at launch.
const REGISTERS: [u32; 2] = [40, 232];

buffers! {
    // `Einsum::check` checks the shapes of the operands. The plan (`gemm::nm`) makes metadata and
    // tiles, which no kernel writes.
    unsafe NmParams {
        meta: u32, ReadOnly;
        tiles: [u32; 2], ReadOnly;
        gate: u8, ReadWrite;
    }
}

impl NmParams {
    #[inline(always)]
    fn output(&self) -> Output {
        Output {
            // `opaque` keeps the test of the flags here: predicates held through the loop over tiles cost registers.
            flags: warp::opaque(self.flags),
            gate: self.gate(),
            gate_bytes: self.gate_bytes,
            ..output!(self)
        }
    }

    /// First row and first column of a tile.
    #[inline(always)]
    fn tile_origin(&self, tile: u32) -> [u32; 2] {
        self.tiles().at(tile).ld_if(tile < self.tile_count)
    }
}

/// Operations that depend on the bytes of an element. A *step* is a sparse product over half of a stage's depth.
pub trait Products<E, const MA: usize, const CHUNKS: usize>: Stages {
    /// A lane's metadata of a stage.
    type Meta: Copy;
    const NO_META: Self::Meta;

    /// Loads this lane's metadata of a pair of stages for the rows from `top`. Past the last pair, it is zero and
    /// unused.
    fn metadata(p: &NmParams, top: u32, pair: u32) -> [Self::Meta; NM_PAIR];
    /// Moves metadata to the registers from which `wgmma` reads it. The products that read their old content must be
    /// complete.
    fn prepare(p: &NmParams, into: &mut Self::Meta, meta: Self::Meta);
    /// Returns the word of a step for the rows of `acc[i]`.
    fn meta_word(meta: Self::Meta, step: usize, i: usize) -> u32;
    /// Issues the products of a step, with A at the first and B at the second address; `meta` as in
    /// [`Multiply::mma_sparse`].
    fn step(
        acc: &mut [Acc<CHUNKS>; MA],
        at: [Shared<u8>; 2],
        step: usize,
        meta: impl Fn(usize, usize) -> u32,
    );
    /// Waits until at most `PENDING` groups are pending. `meta`: metadata of the newest group that is complete then.
    /// Its registers are not reused before.
    fn wait<const PENDING: u32>(p: &NmParams, acc: &mut [Acc<CHUNKS>; MA], meta: Self::Meta);
    /// Finishes and stores 64 rows of sums.
    fn store(p: &NmParams, corner: [u32; 2], smem: (u32, Shared<u8>), acc: &mut Acc<CHUNKS>);
}

impl<const MA: usize, const CHUNKS: usize, F: NmForm> Stages for TwoOfFour<MA, CHUNKS, F> {
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<const MA: usize, const CHUNKS: usize, F: NmForm<A: Multiply, L: Loader>>
    TwoOfFour<MA, CHUNKS, F>
{
    /// Consumer warpgroup: multiplies tiles and stores them.
    #[inline(always)]
    fn consume<E>(p: &NmParams)
    where
        Self: Products<E, MA, CHUNKS>,
    {
        let group = gpu::thread() / 128;
        let mut ring = Ring::<Self>::consumer();
        let mut tile = gpu::block_x();
        while tile < p.tile_count {
            let [row, mut column] = p.tile_origin(tile);
            let mut top = row + group * (MA * HALF) as u32;
            let mut acc = [Acc::<CHUNKS>::zero(); MA];
            if F::A::ASYNCHRONOUS {
                Self::mainloop_wgmma::<E>(p, &mut acc, &mut ring, group, top);
            } else {
                let mut left = p.pairs * NM_PAIR as u32;
                while left > 0 {
                    Self::multiply_stage_mma_sync::<E>(&mut acc, ring.wait_full(), group);
                    Self::release(ring.slot);
                    ring.advance();
                    left -= 1;
                }
                // The origin is loaded again: registers are scarce in the loop.
                let group = gpu::opaque_thread() / 128;
                [top, column] = p.tile_origin(tile);
                top += group * (MA * HALF) as u32;
            }
            Self::epilogue::<E>(p, group, [top, column], &mut acc);
            tile += gpu::grid_x();
        }
    }

    /// Finishes and stores a warpgroup's sums.
    #[inline(always)]
    fn epilogue<E>(p: &NmParams, group: u32, [top, column]: [u32; 2], acc: &mut [Acc<CHUNKS>; MA])
    where
        Self: Products<E, MA, CHUNKS>,
    {
        // SAFETY: the host launches with `SHARED_BYTES`, which include the output buffers.
        let smem = unsafe { Shared::dynamic((Self::OUT + group as usize * SMEM_TILE) as u32) };
        unroll!(i < MA, {
            let corner = [top + (i * HALF) as u32, column];
            F::A::exchange_quarters(&mut acc[i], smem, 1 + group);
            Self::store(p, corner, (group, smem), &mut acc[i]);
        });
    }

    /// Main loop of a tile with `wgmma`. The products of a stage are one group. After the warpgroup has issued the
    /// group of a stage, it waits for the previous group and releases the stage of that group. While products run, it
    /// loads the metadata of the next pair of stages.
    #[inline(always)]
    fn mainloop_wgmma<E>(
        p: &NmParams,
        acc: &mut [Acc<CHUNKS>; MA],
        ring: &mut Ring<Self>,
        group: u32,
        top: u32,
    ) where
        Self: Products<E, MA, CHUNKS>,
    {
        let mut next = Self::metadata(p, top, 0);
        // Metadata of the even and of the odd stages. Each set of registers is kept until the `wgmma`s that read it are
        // complete.
        let (mut even, mut odd) = (Self::NO_META, Self::NO_META);
        let mut pending = NONE;
        let mut pair = 0;
        while pair < p.pairs {
            let now = next;
            pair += 1;
            next = Self::metadata(p, top, pair);
            Self::prepare(p, &mut even, now[0]);
            let first = ring.slot;
            Self::issue_stage::<E>(acc, ring, group, even);
            Self::wait::<1>(p, acc, odd);
            Self::release_pending(pending);
            Self::prepare(p, &mut odd, now[1]);
            pending = ring.slot;
            Self::issue_stage::<E>(acc, ring, group, odd);
            Self::wait::<1>(p, acc, even);
            Self::release(first);
        }
        Self::wait::<0>(p, acc, odd);
        Self::release_pending(pending);
    }

    /// Addresses of a warpgroup's A and of B in a stage.
    #[inline(always)]
    fn operands_of(slot: u32, group: u32) -> [Shared<u8>; 2] {
        let stage = Self::stage(slot);
        [group * (MA * HALF * NM_ROW_BYTES) as u32, Self::A_BYTES as u32]
            .map(|byte| stage.bytes(byte))
    }

    /// Waits for the next stage and issues its `wgmma`s as one group.
    #[inline(always)]
    fn issue_stage<E>(
        acc: &mut [Acc<CHUNKS>; MA],
        ring: &mut Ring<Self>,
        group: u32,
        meta: <Self as Products<E, MA, CHUNKS>>::Meta,
    ) where
        Self: Products<E, MA, CHUNKS>,
    {
        let at = Self::operands_of(ring.wait_full(), group);
        ring.advance();
        unroll!(i < MA, { F::A::fence(&mut acc[i]) });
        unroll!(step < NM_STEPS, {
            Self::step(acc, at, step, |i, _| Self::meta_word(meta, step, i));
        });
        F::A::commit();
    }

    /// Computes the products of one stage with `mma.sync`. The stage contains its metadata.
    #[inline(always)]
    fn multiply_stage_mma_sync<E>(acc: &mut [Acc<CHUNKS>; MA], slot: u32, group: u32)
    where
        Self: Products<E, MA, CHUNKS>,
    {
        let at = Self::operands_of(slot, group);
        let lines = group as usize * MA * Self::META_WORDS * Self::META_LINE;
        let thread = gpu::opaque_thread() % NM_HOLDERS as u32;
        // A warp with all 64 rows reads the words of the corresponding lanes of all four warps.
        let own = if F::A::QUARTERS { thread % 32 } else { thread };
        let meta =
            Self::stage(slot).bytes(Self::OPERANDS as u32).bytes(lines as u32).bytes(own * 4);
        unroll!(step < NM_STEPS, {
            let of_step = meta.bytes((step % Self::META_WORDS * Self::META_LINE) as u32);
            // Loaded for each step, although two steps may share a word: registers are scarcer.
            Self::step(acc, at, step, |i, m| {
                let line = (i * Self::META_WORDS * Self::META_LINE) as u32;
                of_step.bytes(line).bytes(m as u32 * 128).cast::<u32>().ld_volatile()
            });
        });
    }
}

impl<E: SparseElem + WgmmaElem, const MA: usize, const CHUNKS: usize, A: Multiply, L: Loader>
    Products<E, MA, CHUNKS> for TwoOfFour<MA, CHUNKS, NmOf<2, A, L>>
{
    type Meta = [u32; MA];
    const NO_META: Self::Meta = [0; MA];

    #[inline(always)]
    fn metadata(p: &NmParams, top: u32, pair: u32) -> [Self::Meta; NM_PAIR] {
        let thread = gpu::opaque_thread() % 128;
        let mut meta = [[0; MA]; NM_PAIR];
        unroll!(i < MA, {
            let at = (top / HALF as u32 + i as u32) * p.pairs + pair;
            let pairs = p.meta().row(at, (NM_HOLDERS * NM_PAIR * 4) as u64).cast::<[u32; 2]>();
            let [first, second] = pairs.at(thread).ld_if(pair < p.pairs);
            (meta[0][i], meta[1][i]) = (first, second);
        });
        meta
    }

    #[inline(always)]
    fn prepare(p: &NmParams, into: &mut Self::Meta, meta: Self::Meta) {
        unroll!(i < MA, { wgmma_sparse::take(&mut into[i], meta[i], p.zero) });
    }

    /// Both steps share a word. The sparsity selector of a step (0 or 1) names the lanes whose words the step reads.
    #[inline(always)]
    fn meta_word(meta: Self::Meta, _: usize, i: usize) -> u32 {
        meta[i]
    }

    #[inline(always)]
    fn step(
        acc: &mut [Acc<CHUNKS>; MA],
        [smem, b_tile]: [Shared<u8>; 2],
        step: usize,
        meta: impl Fn(usize, usize) -> u32,
    ) {
        let row = PANEL_BYTES as u32;
        let b = b_tile.bytes(step as u32 * 32 * row).descriptor(row, SMEM_TILE as u32);
        let mut a = [0; MA];
        unroll!(i < MA, {
            let place = i * HALF * NM_ROW_BYTES + step * 32;
            a[i] = smem.bytes(place as u32).descriptor(NM_ROW_BYTES as u32, 16);
        });
        if step == 0 {
            A::mma_sparse::<E, CHUNKS, MA, 0>(acc, a, b, meta);
        } else {
            A::mma_sparse::<E, CHUNKS, MA, 1>(acc, a, b, meta);
        }
    }

    #[inline(always)]
    fn wait<const PENDING: u32>(p: &NmParams, acc: &mut [Acc<CHUNKS>; MA], meta: Self::Meta) {
        unroll!(i < MA, {
            A::wait::<CHUNKS, PENDING>(&mut acc[i]);
            wgmma_sparse::keep(meta[i], Self::stage(0).address(), p.zero);
        });
    }

    #[inline(always)]
    fn store(p: &NmParams, corner: [u32; 2], smem: (u32, Shared<u8>), acc: &mut Acc<CHUNKS>) {
        let (o, m) = (p.output(), p.m);
        // With two accumulator sets of 64 rows, a loop would lack registers.
        if MA == 1 {
            StoreTile::<CHUNKS, PLAIN>::write::<E>(o, m, corner, smem, p.pairs, acc);
        } else {
            StoreTile::<CHUNKS, PLAIN>::write_as::<E, false>(o, m, corner, smem, p.pairs, acc);
        }
    }
}

impl<W: WalkInfo, E, const MA: usize, const CHUNKS: usize, F> Kernel<W, E, NmParams>
    for TwoOfFour<MA, CHUNKS, F>
where
    F: NmForm<A: Multiply, L: Loader>,
    Self: Products<E, MA, CHUNKS>,
{
    #[inline(always)]
    unsafe fn run(p: &NmParams, at: Maps) {
        // With TMA only one thread arrives. `arrivals` counts one arrival per warp, so 32 threads give one.
        let copiers = if F::L::BY_ONE { 32 } else { Self::PRODUCER_THREADS };
        make_ring::<Self, F::L, 2>(at, F::L::arrivals(copiers, false));
        roles!(F::A: REGISTERS, Self::produce(p, at), Self::consume::<E>(p));
    }
}
