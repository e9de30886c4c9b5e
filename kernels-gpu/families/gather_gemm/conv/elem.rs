//! Products of a stage, by element type.

use crate::device::prelude::*;

/// Element type of gathered rows.
pub trait ConvElem: Elem<Acc = f32> {
    /// Whether products read A from registers. The next product must then wait for them.
    const IN_REGISTERS: bool;

    /// Starts the products of 64 rows of A by `C` x 64 columns of B, both 128 bytes deep and swizzled in shared memory.
    /// `TB` 1: B is contiguous along n, otherwise along k.
    fn multiply<A: Multiply, const C: usize, const TB: i32>(acc: &mut Acc<C>, a: u32, b: u32);
}

/// Descriptor of B for a step along k.
#[inline(always)]
fn descriptor<const TB: i32>(b: u32, step: usize) -> u64 {
    let row = PANEL_BYTES as u32;
    if TB == 1 {
        frag::descriptor(b + step as u32 * 16 * row, row, SMEM_TILE as u32)
    } else {
        frag::descriptor(b + step as u32 * 32, row, 16)
    }
}

impl<E: WgmmaElem> ConvElem for E {
    const IN_REGISTERS: bool = false;

    #[inline(always)]
    fn multiply<A: Multiply, const C: usize, const TB: i32>(acc: &mut Acc<C>, a: u32, b: u32) {
        A::fence(acc);
        unroll!(step < STEPS, {
            let a = frag::descriptor(a + step as u32 * 32, PANEL_BYTES as u32, 16);
            A::mma::<E, C, 0, TB>(acc, a, descriptor::<TB>(b, step));
        });
        A::commit();
    }
}

impl ConvElem for Tf32 {
    const IN_REGISTERS: bool = true;

    /// Rounds A. B must be contiguous along k.
    #[inline(always)]
    fn multiply<A: Multiply, const C: usize, const TB: i32>(acc: &mut Acc<C>, a: u32, b: u32) {
        let (warp, lane) = gpu::warp_and_lane();
        let (row, chunk) = frag::ldmatrix_x4(lane);
        let mut own = [[0u32; 4]; STEPS];
        unroll!(step < STEPS, {
            let at = frag::swizzle(warp * 16 + row, 2 * step as u32 + chunk, PANEL_BYTES as u32);
            own[step] = matrix::ldmatrix_x4(a + at).map(matrix::cvt_rna_tf32);
        });
        A::fence(acc);
        unroll!(step < STEPS, {
            A::mma_tf32_registers(acc, own[step], descriptor::<0>(b, step));
        });
        A::commit();
    }
}
