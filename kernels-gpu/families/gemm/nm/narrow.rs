//! The module `nm_narrow`: 8-bit operands, B as `[n, k]`. A and B are contiguous along k, the only
//! order that `wgmma` supports for them. Every product has its own metadata, a word of the format from each lane. The
//! epilogue is that of `wgmma::narrow`.

use super::Products;
use crate::device::prelude::*;
use crate::device::ptx::wgmma_sparse;
use crate::families::gemm::abi::*;

impl<E: SparseElem + BytesElem, const MA: usize, const CHUNKS: usize, A: Multiply, L: Loader>
    Products<E, MA, CHUNKS> for TwoOfFour<MA, CHUNKS, NmOf<1, A, L>>
{
    /// One register for each step and 64 rows.
    type Meta = [[u32; MA]; NM_STEPS];
    const NO_META: Self::Meta = [[0; MA]; NM_STEPS];

    #[inline(always)]
    fn metadata(p: &NmParams, top: u32, pair: u32) -> [Self::Meta; NM_PAIR] {
        let thread = gpu::opaque_thread() % NM_HOLDERS as u32;
        let mut meta = [[[0; MA]; NM_STEPS]; NM_PAIR];
        unroll!(i < MA, {
            let at = (top / HALF as u32 + i as u32) * p.pairs + pair;
            let at = at as u64 * NM_HOLDERS as u64 + thread as u64;
            let [a, b, c, d] = p.meta().cast::<[u32; 4]>().at(at).ld_if(pair < p.pairs);
            (meta[0][0][i], meta[0][1][i]) = (a, b);
            (meta[1][0][i], meta[1][1][i]) = (c, d);
        });
        meta
    }

    #[inline(always)]
    fn prepare(p: &NmParams, into: &mut Self::Meta, meta: Self::Meta) {
        unroll!(step < NM_STEPS, {
            unroll!(i < MA, { wgmma_sparse::take(&mut into[step][i], meta[step][i], p.zero) });
        });
    }

    #[inline(always)]
    fn meta_word(meta: Self::Meta, step: usize, i: usize) -> u32 {
        meta[step][i]
    }

    #[inline(always)]
    fn step(
        acc: &mut [Acc<CHUNKS>; MA],
        [smem, b_tile]: [Shared<u8>; 2],
        step: usize,
        meta: impl Fn(usize, usize) -> u32,
    ) {
        // A step is half of a row: 64 bytes of B, 32 of A.
        let place = b_tile.bytes((step * PANEL_BYTES / NM_STEPS) as u32);
        let b = place.descriptor(PANEL_BYTES as u32, 16);
        let mut a = [0; MA];
        unroll!(i < MA, {
            let place = i * HALF * NM_ROW_BYTES + step * NM_ROW_BYTES / NM_STEPS;
            a[i] = smem.bytes(place as u32).descriptor(NM_ROW_BYTES as u32, 16);
        });
        A::mma_sparse::<E, CHUNKS, MA, 0>(acc, a, b, meta);
    }

    #[inline(always)]
    fn wait<const PENDING: u32>(p: &NmParams, acc: &mut [Acc<CHUNKS>; MA], meta: Self::Meta) {
        unroll!(i < MA, { A::wait::<CHUNKS, PENDING>(&mut acc[i]) });
        unroll!(step < NM_STEPS, {
            unroll!(i < MA, {
                wgmma_sparse::keep(meta[step][i], Self::stage(0).address(), p.zero)
            });
        });
    }

    #[inline(always)]
    fn store(p: &NmParams, corner: [u32; 2], smem: (u32, Shared<u8>), acc: &mut Acc<CHUNKS>) {
        let (o, m) = (p.output(), p.m);
        Panel::<CHUNKS, PanelOf<64, 64, PLAIN, 1, A, L>>::write_narrow::<E>(
            o, m, corner, smem, p.pairs, acc,
        );
    }
}
