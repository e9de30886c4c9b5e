//! How a stage is multiplied, by element type.

use crate::abi::*;
use crate::device::elem::Elem;
use crate::device::gpu;
use crate::device::ptx::wgmma::Acc;
use crate::device::ptx::{copy, matrix};
use crate::device::wgmma::WgmmaElem;
use crate::frag;

/// An element type that dense tiles are multiplied in.
pub trait DenseElem: Elem<Acc = f32> {
    /// Starts the products of a stage: a warpgroup's own slab with the panel.
    fn stage<const C: usize>(acc: &mut Acc<C>, slab: u32, panel: u32);
}

/// Rows of A, contiguous along k, times columns of B, contiguous along n.
#[inline(always)]
fn halves<E: WgmmaElem, const C: usize>(acc: &mut Acc<C>, slab: u32, panel: u32) {
    let row = PANEL_BYTES as u32;
    acc.fence();
    unroll!(step < STEPS, {
        let a = frag::descriptor(slab + step as u32 * 32, row, 16);
        let b = frag::descriptor(panel + step as u32 * 16 * row, row, SLAB as u32);
        E::mma::<C, 0, 1>(acc, a, b);
    });
}

impl DenseElem for F16 {
    #[inline(always)]
    fn stage<const C: usize>(acc: &mut Acc<C>, slab: u32, panel: u32) {
        halves::<F16, C>(acc, slab, panel)
    }
}

impl DenseElem for Bf16 {
    #[inline(always)]
    fn stage<const C: usize>(acc: &mut Acc<C>, slab: u32, panel: u32) {
        halves::<Bf16, C>(acc, slab, panel)
    }
}

impl DenseElem for Tf32 {
    /// Columns of B, through registers, times rows of A. Both are contiguous along k where `wgmma` sees them.
    #[inline(always)]
    fn stage<const C: usize>(acc: &mut Acc<C>, slab: u32, panel: u32) {
        let (lane, warp) = (gpu::thread_again() % 32, gpu::thread_again() / 32 % 4);
        let row = PANEL_BYTES as u32;
        // Two pieces of 32 columns lie behind each other.
        let piece = slab + warp / 2 * (SLAB as u32 / 2);
        let mut b = [[0u32; 4]; STEPS];
        unroll!(r < 4, {
            let (g, k) = frag::a_k8(lane, r as u32);
            let column = frag::turned_column(warp % 2 * 16 + g);
            let at = piece + frag::swizzle(k, column / 4, row) + column % 4 * 4;
            unroll!(step < STEPS, {
                let x = copy::load_shared_b32(at + step as u32 * 8 * row);
                b[step][r] = matrix::round_tf32(x);
            });
        });
        acc.fence();
        unroll!(step < STEPS, {
            let a = frag::descriptor(panel + step as u32 * 32, row, 16);
            acc.mma_tf32_registers(b[step], a);
        });
    }
}
