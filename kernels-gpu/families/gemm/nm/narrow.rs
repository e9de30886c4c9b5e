//! The module `nm_narrow`: 8-bit operands, B as `[n, k]`, contiguous along k as A is, which is all that `wgmma` takes
//! of them. Every `wgmma` has metadata of its own, a word of the format from each lane. Results leave as those of
//! `wgmma::narrow`.

use super::{CONSUMER_REGISTERS, CONSUMERS, PRODUCER_REGISTERS};
use crate::device::prelude::*;
use crate::device::ptx::wgmma_sparse;
use crate::device::stages::NONE;
use crate::families::gemm::abi::*;
use crate::families::gemm::wgmma::narrow::NarrowElem;

/// An element type of 8 bits with a sparse `wgmma` atom.
pub trait SparseNarrow: NarrowElem {
    /// `D += A B`, 64 deep.
    fn mma_sparse<const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, meta: u32);
}

impl SparseNarrow for Int8 {
    #[inline(always)]
    fn mma_sparse<const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, meta: u32) {
        acc.mma_sparse_s8(a, b, meta)
    }
}

/// The metadata of a stage: a register for each step and 64 rows.
type Stage<const MA: usize> = [[u32; MA]; NM_STEPS];

impl<const MA: usize, const CHUNKS: usize> TwoOfFour<MA, CHUNKS, 1> {
    /// This lane's metadata of a pair of stages of the rows from `top`; zeros past the last pair, which nobody uses.
    #[inline(always)]
    fn metadata_narrow(p: &NmParams, top: u32, pair: u32) -> [Stage<MA>; NM_PAIR] {
        let thread = gpu::rematerialize_thread() % NM_HOLDERS as u32;
        let mut meta = [[[0; MA]; NM_STEPS]; NM_PAIR];
        unroll!(i < MA, {
            let at = (top / HALF as u32 + i as u32) * p.pairs + pair;
            let at = p.meta + (at as u64 * NM_HOLDERS as u64 + thread as u64) * 16;
            let [a, b, c, d] = global::load_v4(at, pair < p.pairs);
            (meta[0][0][i], meta[0][1][i]) = (a, b);
            (meta[1][0][i], meta[1][1][i]) = (c, d);
        });
        meta
    }

    /// A warpgroup: multiplies tiles and sends them out.
    #[inline(always)]
    fn consume_narrow<E: SparseNarrow>(p: &NmParams) {
        let group = gpu::thread() / 128;
        let mut ring = Ring::<Self>::consumer();
        let mut tile = gpu::block_x();
        while tile < p.tile_count {
            let [row, column] = p.corner(tile);
            let top = row + group * (MA * HALF) as u32;
            let mut acc = [Acc::<CHUNKS>::zero(); MA];
            let mut next = Self::metadata_narrow(p, top, 0);
            // Two sets of registers by turns, each kept until the `wgmma`s that read it are done.
            let (mut even, mut odd) = ([[0; MA]; NM_STEPS], [[0; MA]; NM_STEPS]);
            let mut pending = NONE;
            let mut pair = 0;
            while pair < p.pairs {
                let now = next;
                pair += 1;
                next = Self::metadata_narrow(p, top, pair);
                Self::take_stage(p, &mut even, now[0]);
                let first = ring.slot;
                Self::multiply_narrow::<E>(&mut acc, &mut ring, group, even);
                Self::finished_stage::<1>(p, &mut acc, pending, odd);
                Self::take_stage(p, &mut odd, now[1]);
                pending = ring.slot;
                Self::multiply_narrow::<E>(&mut acc, &mut ring, group, odd);
                Self::finished_stage::<1>(p, &mut acc, first, even);
            }
            Self::finished_stage::<0>(p, &mut acc, pending, odd);
            let smem = copy::arena() + (Self::OUT + group as usize * SMEM_TILE) as u32;
            unroll!(i < MA, {
                let corner = [top + (i * HALF) as u32, column];
                Panel::<64, 64, CHUNKS, PLAIN, 1>::write_narrow::<E>(
                    p.output(),
                    p.m,
                    corner,
                    (group, smem),
                    p.pairs,
                    &mut acc[i],
                );
            });
            tile += gpu::grid_x();
        }
    }

    #[inline(always)]
    fn take_stage(p: &NmParams, into: &mut Stage<MA>, meta: Stage<MA>) {
        unroll!(step < NM_STEPS, {
            Self::take(p, &mut into[step], meta[step])
        });
    }

    /// As `finished`, for the metadata of both steps.
    #[inline(always)]
    fn finished_stage<const PENDING: u32>(
        p: &NmParams,
        acc: &mut [Acc<CHUNKS>; MA],
        slot: u32,
        meta: Stage<MA>,
    ) {
        unroll!(i < MA, { acc[i].wait::<PENDING>() });
        unroll!(step < NM_STEPS, {
            unroll!(i < MA, {
                wgmma_sparse::keep(meta[step][i], copy::arena(), p.zero)
            });
        });
        Self::release_pending(slot);
    }

    /// Waits for the next stage and issues its `wgmma`s, as one group.
    #[inline(always)]
    fn multiply_narrow<E: SparseNarrow>(
        acc: &mut [Acc<CHUNKS>; MA],
        ring: &mut Ring<Self>,
        group: u32,
        meta: Stage<MA>,
    ) {
        let stage = Self::stage(ring.wait_full());
        ring.advance();
        let (smem, b_tile) = (
            stage + group * (MA * HALF * NM_ROW_BYTES) as u32,
            stage + Self::A_BYTES as u32,
        );
        unroll!(i < MA, { acc[i].fence() });
        unroll!(step < NM_STEPS, {
            // A step is half of a row: 64 bytes of B, 32 of A.
            let place = b_tile + (step * PANEL_BYTES / NM_STEPS) as u32;
            let b = frag::descriptor(place, PANEL_BYTES as u32, 16);
            unroll!(i < MA, {
                let place = i * HALF * NM_ROW_BYTES + step * NM_ROW_BYTES / NM_STEPS;
                let a = frag::descriptor(smem + place as u32, NM_ROW_BYTES as u32, 16);
                E::mma_sparse::<CHUNKS>(&mut acc[i], a, b, meta[step][i]);
            });
        });
        wgmma::commit();
    }
}

impl<W: WalkInfo, E: SparseNarrow, const MA: usize, const CHUNKS: usize> Kernel<W, E, NmParams>
    for TwoOfFour<MA, CHUNKS, 1>
{
    #[inline(always)]
    unsafe fn run(p: &NmParams, at: u64) {
        Self::set_up(at);
        if gpu::thread() >= CONSUMERS * 32 {
            barrier::registers_down::<PRODUCER_REGISTERS>();
            Self::produce(p, at);
        } else {
            barrier::registers_up::<CONSUMER_REGISTERS>();
            Self::consume_narrow::<E>(p);
        }
    }
}
