//! Products of a stage, by element type.

use crate::device::multiply::StepElem;
use crate::device::prelude::*;

/// Element type of gathered rows.
pub trait ConvElem: Elem<Acc = f32> {
    /// Whether products read A from registers. The next product must then wait for them.
    const IN_REGISTERS: bool;
    /// Element type of `mma.sync`.
    type Step: StepElem;

    /// Starts the products of 64 rows of A by `C` x 64 columns of B, both 128 bytes deep and swizzled in shared memory.
    /// `TB` 1: B is contiguous along n, otherwise along k.
    fn multiply<A: Multiply, const C: usize, const TB: i32>(
        acc: &mut Acc<C>,
        a: Shared<u8>,
        b: Shared<u8>,
    );

    /// [`Self::multiply`] by `mma.sync` of 128 rows of A.
    #[inline(always)]
    fn multiply_two<const C: usize, const TB: i32>(
        acc: &mut [Acc<C>; 2],
        a: Shared<u8>,
        b: Shared<u8>,
    ) {
        let (warp, lane) = gpu::warp_and_lane();
        let (row, chunk) = frag::ldmatrix_x4(lane);
        let own = a.bytes(frag::swizzle(warp * 16 + row, chunk, PANEL_BYTES as u32));
        let rows = |step: usize, half: usize| {
            if Self::IN_REGISTERS && (step, half) == (2, 0) {
                // ptxas does not load fragments ahead of this barrier. With those of all steps, it spills.
                warp::sync(u32::MAX);
            }
            own.flipped((step * 32) as u32).bytes((half * SMEM_TILE) as u32).ldmatrix()
        };
        MmaSync::mma_two::<Self::Step, C, TB, BOTH>(acc, rows, descriptor::<TB>(b, 0));
    }
}

/// Both halves of [`MmaSync::mma_two`].
const BOTH: u32 = MmaSync::FIRST | MmaSync::SECOND;

/// TF32 whose operands are rounded here. The compiler rounds a fragment once for all of its products.
pub struct Rounded;

impl StepElem for Rounded {
    #[inline(always)]
    fn step(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        matrix::mma_tf32(d, a.map(matrix::cvt_rna_tf32), b.map(matrix::cvt_rna_tf32));
    }
}

/// Descriptor of B for a step along k.
#[inline(always)]
fn descriptor<const TB: i32>(b: Shared<u8>, step: usize) -> u64 {
    let row = PANEL_BYTES as u32;
    if TB == 1 {
        b.bytes(step as u32 * 16 * row).descriptor(row, SMEM_TILE as u32)
    } else {
        b.bytes(step as u32 * 32).descriptor(row, 16)
    }
}

impl<E: WgmmaElem> ConvElem for E {
    const IN_REGISTERS: bool = false;
    type Step = E;

    #[inline(always)]
    fn multiply<A: Multiply, const C: usize, const TB: i32>(
        acc: &mut Acc<C>,
        a: Shared<u8>,
        b: Shared<u8>,
    ) {
        A::fence(acc);
        unroll!(step < STEPS, {
            let a = a.bytes(step as u32 * 32).descriptor(PANEL_BYTES as u32, 16);
            A::mma::<E, C, 0, TB>(acc, a, descriptor::<TB>(b, step));
        });
        A::commit();
    }
}

impl ConvElem for Tf32 {
    const IN_REGISTERS: bool = true;
    type Step = Rounded;

    /// Rounds A. B must be contiguous along k.
    #[inline(always)]
    fn multiply<A: Multiply, const C: usize, const TB: i32>(
        acc: &mut Acc<C>,
        a: Shared<u8>,
        b: Shared<u8>,
    ) {
        let (warp, lane) = gpu::warp_and_lane();
        let (row, chunk) = frag::ldmatrix_x4(lane);
        let mut own = [[0u32; 4]; STEPS];
        unroll!(step < STEPS, {
            let at = frag::swizzle(warp * 16 + row, 2 * step as u32 + chunk, PANEL_BYTES as u32);
            own[step] = a.bytes(at).ldmatrix().map(matrix::cvt_rna_tf32);
        });
        A::fence(acc);
        unroll!(step < STEPS, {
            A::mma_tf32_registers(acc, own[step], descriptor::<0>(b, step));
        });
        A::commit();
    }
}
