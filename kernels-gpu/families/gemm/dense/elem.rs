//! Products of a stage, by element type.

use crate::device::prelude::*;

/// Element type of dense tiles.
pub trait DenseElem: Elem<Acc = f32> {
    /// Registers of a thread that hold its part of a warpgroup's own tile.
    type Own: Copy;

    /// Loads these registers from shared memory. The stage has arrived.
    fn own<L: Loader>(smem: Shared<u8>) -> Self::Own;

    /// Keeps the registers alive up to this point, without an instruction: values loaded meanwhile use others.
    fn keep(own: &Self::Own);

    /// Starts the products of a stage: a warpgroup's own tile with the tile that all warpgroups share.
    fn stage<A: Multiply, const C: usize>(
        acc: &mut Acc<C>,
        smem: Shared<u8>,
        own: &Self::Own,
        b_tile: Shared<u8>,
    );
}

impl<E: WgmmaElem> DenseElem for E {
    type Own = ();

    #[inline(always)]
    fn own<L: Loader>(_: Shared<u8>) {}

    #[inline(always)]
    fn keep(_: &()) {}

    /// Multiplies rows of A, contiguous along k, by columns of B, contiguous along n.
    #[inline(always)]
    fn stage<A: Multiply, const C: usize>(
        acc: &mut Acc<C>,
        smem: Shared<u8>,
        _: &(),
        b_tile: Shared<u8>,
    ) {
        let row = PANEL_BYTES as u32;
        A::fence(acc);
        unroll!(step < STEPS, {
            let a = smem.bytes(step as u32 * 32).descriptor(row, 16);
            let b = b_tile.bytes(step as u32 * 16 * row).descriptor(row, SMEM_TILE as u32);
            A::mma::<E, C, 0, 1>(acc, a, b);
        });
    }
}

impl DenseElem for Tf32 {
    type Own = [[u32; 4]; STEPS];

    /// Loads columns of B. `wgmma` reads them from shared memory only if they are contiguous along k.
    #[inline(always)]
    fn own<L: Loader>(smem: Shared<u8>) -> Self::Own {
        let (lane, warp) = gpu::lane_and_warp();
        let row = PANEL_BYTES as u32;
        // Two pieces of 32 columns are stored one after the other.
        let piece = smem.bytes(warp / 2 * (SMEM_TILE as u32 / 2));
        let mut b = [[0u32; 4]; STEPS];
        unroll!(r < 4, {
            let (g, k) = frag::a_k8(lane, r as u32);
            let column = frag::transposed_column(warp % 2 * 16 + g);
            let at = piece.bytes(frag::swizzle(k, column / 4, row)).cast::<u32>().at(column % 4);
            unroll!(step < STEPS, {
                let word = at.bytes(step as u32 * 8 * row).ld();
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
    fn stage<A: Multiply, const C: usize>(
        acc: &mut Acc<C>,
        _: Shared<u8>,
        own: &Self::Own,
        b_tile: Shared<u8>,
    ) {
        A::fence(acc);
        unroll!(step < STEPS, {
            let a = b_tile.bytes(step as u32 * 32).descriptor(PANEL_BYTES as u32, 16);
            A::mma_tf32_registers(acc, own[step], a);
        });
    }
}
