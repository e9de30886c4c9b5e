//! Element types of Tensor Cores with their `mma.sync` atom. A k-step is 32 bytes of A.

use super::elem::Elem;
use super::ptx::matrix;
use super::tile::{ATile, BTile};
use crate::abi::*;

/// Element type with an `mma.sync` atom.
pub trait MmaElem: Elem<Acc = f32> {
    /// Fragment of A for one atom.
    fn a(tile: ATile, row: u32, step: u32, lane: u32) -> [u32; 4];
    /// Fragments of B for the two n8 atoms from `column`.
    fn b<const ROW_BYTES: usize>(
        tile: BTile<ROW_BYTES>,
        step: u32,
        column: u32,
        lane: u32,
    ) -> [[u32; 2]; 2];
    /// `D += A B`.
    fn mma(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]);
}

macro_rules! half_mma {
    ($elem:ident, $mma:ident) => {
        impl MmaElem for $elem {
            #[inline(always)]
            fn a(tile: ATile, row: u32, step: u32, lane: u32) -> [u32; 4] {
                tile.fragment(row, step, lane)
            }
            #[inline(always)]
            fn b<const R: usize>(
                tile: BTile<R>,
                step: u32,
                column: u32,
                lane: u32,
            ) -> [[u32; 2]; 2] {
                tile.fragment_b16(step, column, lane)
            }
            #[inline(always)]
            fn mma(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
                matrix::$mma(d, a, b)
            }
        }
    };
}

half_mma!(F16, mma_f16);
half_mma!(Bf16, mma_bf16);

impl MmaElem for Tf32 {
    #[inline(always)]
    fn a(tile: ATile, row: u32, step: u32, lane: u32) -> [u32; 4] {
        tile.fragment(row, step, lane).map(matrix::cvt_rna_tf32)
    }
    #[inline(always)]
    fn b<const R: usize>(tile: BTile<R>, step: u32, column: u32, lane: u32) -> [[u32; 2]; 2] {
        [column, column + 8].map(|c| tile.fragment_b32(step, c, lane).map(matrix::cvt_rna_tf32))
    }
    #[inline(always)]
    fn mma(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        matrix::mma_tf32(d, a, b)
    }
}
