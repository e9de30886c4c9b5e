//! Products of a stage, by element type.

use crate::device::prelude::*;

/// Element type of dense tiles.
pub trait DenseElem: Elem<Acc = f32> {
    /// Registers of a thread that hold its part of a warpgroup's own tile.
    type Own: Copy;

    /// Loads these registers from shared memory. The stage has arrived.
    fn own<L: Loader>(smem: u32) -> Self::Own;

    /// Keeps the registers alive up to this point, without an instruction: values loaded meanwhile use others.
    fn keep(own: &Self::Own);

    /// Starts the products of a stage: a warpgroup's own tile with the tile that all warpgroups share.
    fn stage<A: Multiply, const C: usize>(
        acc: &mut Acc<C>,
        smem: u32,
        own: &Self::Own,
        b_tile: u32,
    );
}

impl<E: WgmmaElem> DenseElem for E {
    type Own = ();

    #[inline(always)]
    fn own<L: Loader>(_: u32) {}

    #[inline(always)]
    fn keep(_: &()) {}

    /// Multiplies rows of A, contiguous along k, by columns of B, contiguous along n.
    #[inline(always)]
    fn stage<A: Multiply, const C: usize>(acc: &mut Acc<C>, smem: u32, _: &(), b_tile: u32) {
        let row = PANEL_BYTES as u32;
        A::fence(acc);
        unroll!(step < STEPS, {
            let a = frag::descriptor(smem + step as u32 * 32, row, 16);
            let b = frag::descriptor(b_tile + step as u32 * 16 * row, row, SMEM_TILE as u32);
            A::mma::<E, C, 0, 1>(acc, a, b);
        });
    }
}

impl DenseElem for Tf32 {
    type Own = [[u32; 4]; STEPS];

    /// Loads columns of B. `wgmma` reads them from shared memory only if they are contiguous along k.
    #[inline(always)]
    fn own<L: Loader>(smem: u32) -> Self::Own {
        let (lane, warp) = gpu::lane_and_warp();
        let row = PANEL_BYTES as u32;
        // Two pieces of 32 columns are stored one after the other.
        let piece = smem + warp / 2 * (SMEM_TILE as u32 / 2);
        let mut b = [[0u32; 4]; STEPS];
        unroll!(r < 4, {
            let (g, k) = frag::a_k8(lane, r as u32);
            let column = frag::transposed_column(warp % 2 * 16 + g);
            let at = piece + frag::swizzle(k, column / 4, row) + column % 4 * 4;
            unroll!(step < STEPS, {
                let word = copy::ld_shared_b32(at + step as u32 * 8 * row);
                // The copy engine has already rounded.
                b[step][r] = if L::BY_ONE { word } else { matrix::cvt_rna_tf32(word) };
            });
        });
        b
    }

    #[inline(always)]
    fn keep(own: &Self::Own) {
        unroll!(step < STEPS, { matrix::keep_alive(own[step]) });
    }

    /// Multiplies them by rows of A, which are contiguous along k.
    #[inline(always)]
    fn stage<A: Multiply, const C: usize>(acc: &mut Acc<C>, _: u32, own: &Self::Own, b_tile: u32) {
        A::fence(acc);
        unroll!(step < STEPS, {
            let a = frag::descriptor(b_tile + step as u32 * 32, PANEL_BYTES as u32, 16);
            A::mma_tf32_registers(acc, own[step], a);
        });
    }
}
