//! A kept two of four on Hopper's sparse Tensor Cores: a persistent thread block per multiprocessor. One thread copies
//! tiles of A and B into a ring of stages, two warpgroups multiply what has arrived (`wgmma.mma_async.sp`) and send C
//! out. The metadata goes straight from global memory to registers, a pair of stages ahead, in the order in which lanes
//! hold it: gathered from the rows' words it would take a quarter of what shared memory and L1 give.

#[cfg(any(module = "nm_narrow", feature = "cuda_std"))]
pub mod narrow;

use crate::device::epilogue::{Output, output};
use crate::device::prelude::*;
use crate::device::ptx::wgmma_sparse;
use crate::device::stages::NONE;
use crate::device::store::StoreTile;
use crate::families::gemm::abi::*;

/// Registers a thread of the copying warpgroup keeps, and one of the multiplying ones gets: 40 + 2 x 232 is three
/// times the 168 they start with.
const REGISTERS: [u32; 2] = [40, 232];

impl NmParams {
    #[inline(always)]
    fn output(&self) -> Output {
        Output {
            // Tested here and now: predicates held through the loop over tiles cost registers.
            flags: warp::rematerialize(self.flags),
            gate: self.gate,
            gate_bytes: self.gate_bytes,
            ..output!(self)
        }
    }

    #[inline(always)]
    fn corner(&self, tile: u32) -> [u32; 2] {
        global::load_v2(self.tiles + tile as u64 * 8, tile < self.tile_count)
    }
}

/// What differs with the bytes of an element.
pub trait Products<E, const MA: usize, const CHUNKS: usize>: Stages {
    /// A lane's metadata of a stage.
    type Meta: Copy;
    const NO_META: Self::Meta;

    /// This lane's metadata of a pair of stages of the rows from `top`; zeros past the last pair, which nobody uses.
    fn metadata(p: &NmParams, top: u32, pair: u32) -> [Self::Meta; NM_PAIR];
    /// Metadata into the registers that `wgmma` reads it from.
    fn take(p: &NmParams, into: &mut Self::Meta, meta: Self::Meta);
    /// The `wgmma`s of a step against A at the first and B at the second place.
    fn step(acc: &mut [Acc<CHUNKS>; MA], at: [u32; 2], step: usize, meta: Self::Meta);
    /// Waits until at most `PENDING` groups are under way, and frees the metadata of the one before.
    fn wait<const PENDING: u32>(p: &NmParams, acc: &mut [Acc<CHUNKS>; MA], meta: Self::Meta);
    /// Finishes and stores 64 rows of sums.
    fn store(p: &NmParams, corner: [u32; 2], smem: (u32, u32), acc: &mut Acc<CHUNKS>);
}

impl<const MA: usize, const CHUNKS: usize, const BYTES: usize> Stages
    for TwoOfFour<MA, CHUNKS, BYTES>
{
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<const MA: usize, const CHUNKS: usize, const BYTES: usize> TwoOfFour<MA, CHUNKS, BYTES> {
    /// One thread: waits for a free stage and starts its copies.
    #[inline(always)]
    fn produce(p: &NmParams, at: u64) {
        if gpu::thread() != CONSUMERS * 32 {
            return;
        }
        let mut ring = Ring::<Self>::producer();
        let mut tile = gpu::block_x();
        while tile < p.tile_count {
            let [row, column] = p.corner(tile);
            let mut s = 0;
            while s < p.pairs * NM_PAIR as u32 {
                let (to, full) = (Self::stage(ring.wait_empty()), ring.full());
                barrier::arrive_expect(full, Self::STAGE as u32);
                bulk::tma_load_2d(to, at, s * (Self::DEPTH / 2) as u32, row, full);
                let k = s * Self::DEPTH as u32;
                if BYTES == 1 {
                    bulk::tma_load_2d(to + Self::A_BYTES as u32, at + 128, k, column, full);
                } else {
                    unroll!(c < CHUNKS, most 4, {
                        let to = to + (Self::A_BYTES + c * SMEM_TILE) as u32;
                        bulk::tma_load_2d(to, at + 128, column + c as u32 * 64, k, full);
                    });
                }
                ring.advance();
                s += 1;
            }
            tile += gpu::grid_x();
        }
    }

    /// A warpgroup: multiplies tiles and sends them out.
    #[inline(always)]
    fn consume<E>(p: &NmParams)
    where
        Self: Products<E, MA, CHUNKS>,
    {
        let group = gpu::thread() / 128;
        let mut ring = Ring::<Self>::consumer();
        let mut tile = gpu::block_x();
        while tile < p.tile_count {
            let [row, column] = p.corner(tile);
            let top = row + group * (MA * HALF) as u32;
            let mut acc = [Acc::<CHUNKS>::zero(); MA];
            let mut next = Self::metadata(p, top, 0);
            // Two sets of registers by turns, each kept until the `wgmma`s that read it are done.
            let (mut even, mut odd) = (Self::NO_META, Self::NO_META);
            let mut pending = NONE;
            let mut pair = 0;
            while pair < p.pairs {
                let now = next;
                pair += 1;
                next = Self::metadata(p, top, pair);
                Self::take(p, &mut even, now[0]);
                let first = ring.slot;
                Self::multiply::<E>(&mut acc, &mut ring, group, even);
                Self::wait::<1>(p, &mut acc, odd);
                Self::release_pending(pending);
                Self::take(p, &mut odd, now[1]);
                pending = ring.slot;
                Self::multiply::<E>(&mut acc, &mut ring, group, odd);
                Self::wait::<1>(p, &mut acc, even);
                Self::release_pending(first);
            }
            Self::wait::<0>(p, &mut acc, odd);
            Self::release_pending(pending);
            let smem = copy::arena() + (Self::OUT + group as usize * SMEM_TILE) as u32;
            unroll!(i < MA, {
                let corner = [top + (i * HALF) as u32, column];
                Self::store(p, corner, (group, smem), &mut acc[i]);
            });
            tile += gpu::grid_x();
        }
    }

    /// Waits for the next stage and issues its `wgmma`s, as one group.
    #[inline(always)]
    fn multiply<E>(
        acc: &mut [Acc<CHUNKS>; MA],
        ring: &mut Ring<Self>,
        group: u32,
        meta: <Self as Products<E, MA, CHUNKS>>::Meta,
    ) where
        Self: Products<E, MA, CHUNKS>,
    {
        let stage = Self::stage(ring.wait_full());
        ring.advance();
        let (smem, b_tile) =
            (stage + group * (MA * HALF * NM_ROW_BYTES) as u32, stage + Self::A_BYTES as u32);
        unroll!(i < MA, { acc[i].fence() });
        unroll!(step < NM_STEPS, { Self::step(acc, [smem, b_tile], step, meta) });
        wgmma::commit();
    }
}

impl<E: SparseElem + WgmmaElem, const MA: usize, const CHUNKS: usize> Products<E, MA, CHUNKS>
    for TwoOfFour<MA, CHUNKS>
{
    type Meta = [u32; MA];
    const NO_META: Self::Meta = [0; MA];

    #[inline(always)]
    fn metadata(p: &NmParams, top: u32, pair: u32) -> [Self::Meta; NM_PAIR] {
        let thread = gpu::rematerialize_thread() % 128;
        let mut meta = [[0; MA]; NM_PAIR];
        unroll!(i < MA, {
            let at = (top / HALF as u32 + i as u32) * p.pairs + pair;
            let at = p.meta + at as u64 * (NM_HOLDERS * NM_PAIR * 4) as u64 + thread as u64 * 8;
            let [first, second] = global::load_v2(at, pair < p.pairs);
            (meta[0][i], meta[1][i]) = (first, second);
        });
        meta
    }

    #[inline(always)]
    fn take(p: &NmParams, into: &mut Self::Meta, meta: Self::Meta) {
        unroll!(i < MA, { wgmma_sparse::take(&mut into[i], meta[i], p.zero) });
    }

    #[inline(always)]
    fn step(acc: &mut [Acc<CHUNKS>; MA], [smem, b_tile]: [u32; 2], step: usize, meta: Self::Meta) {
        let row = PANEL_BYTES as u32;
        let b = frag::descriptor(b_tile + step as u32 * 32 * row, row, SMEM_TILE as u32);
        unroll!(i < MA, {
            let place = i * HALF * NM_ROW_BYTES + step * 32;
            let a = frag::descriptor(smem + place as u32, NM_ROW_BYTES as u32, 16);
            if step == 0 {
                Wgmma::mma_sparse::<E, CHUNKS, 0>(&mut acc[i], a, b, meta[i]);
            } else {
                Wgmma::mma_sparse::<E, CHUNKS, 1>(&mut acc[i], a, b, meta[i]);
            }
        });
    }

    #[inline(always)]
    fn wait<const PENDING: u32>(p: &NmParams, acc: &mut [Acc<CHUNKS>; MA], meta: Self::Meta) {
        unroll!(i < MA, {
            acc[i].wait::<PENDING>();
            wgmma_sparse::keep(meta[i], copy::arena(), p.zero);
        });
    }

    #[inline(always)]
    fn store(p: &NmParams, corner: [u32; 2], smem: (u32, u32), acc: &mut Acc<CHUNKS>) {
        let (o, m) = (p.output(), p.m);
        // Two halves leave no registers for a loop.
        if MA == 1 {
            StoreTile::<CHUNKS, PLAIN>::write::<E>(o, m, corner, smem, p.pairs, acc);
        } else {
            StoreTile::<CHUNKS, PLAIN>::write_as::<E, false>(o, m, corner, smem, p.pairs, acc);
        }
    }
}

impl<W: WalkInfo, E, const MA: usize, const CHUNKS: usize, const BYTES: usize>
    Kernel<W, E, NmParams> for TwoOfFour<MA, CHUNKS, BYTES>
where
    Self: Products<E, MA, CHUNKS>,
{
    #[inline(always)]
    unsafe fn run(p: &NmParams, at: u64) {
        Self::make_ring::<2>(at, 1, CONSUMERS);
        roles!(REGISTERS, Self::produce(p, at), Self::consume::<E>(p));
    }
}
