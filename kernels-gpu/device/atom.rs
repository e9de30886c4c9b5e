//! Tensor Core atoms of sparse convolutions. An atom multiplies one stage: 64 rows of A by `C` x 64 columns of B, both
//! 128 bytes deep and swizzled in shared memory. Accumulators have the register layout of `wgmma`. Bodies take the atom
//! as a parameter, so another atom is another row of the table.

use super::elem::Elem;
use super::gpu;
use super::mma::MmaElem;
use super::ptx::wgmma::{self, Acc};
use super::ptx::{barrier, matrix};
use super::warpgroup::WgmmaElem;
use crate::abi::*;
use crate::frag;

/// Tensor Core atom of four warps.
pub trait Atom<E: Elem> {
    /// Whether a product may still read its stage when the next product is issued.
    const LATER: bool;
    /// `D += A B` of the operands at shared addresses `a` and `b`. `TB` 1: B is contiguous along n, otherwise along k.
    fn multiply<const C: usize, const TB: i32>(acc: &mut Acc<C>, a: u32, b: u32);
    /// Waits until at most `PENDING` groups of products are pending.
    #[inline(always)]
    fn wait<const C: usize, const PENDING: u32>(acc: &mut Acc<C>) {
        acc.wait::<PENDING>();
    }
    /// Makes data that threads stored in shared memory visible to products.
    #[inline(always)]
    fn fence_proxy_async() {
        barrier::fence_proxy_async();
    }
}

/// Descriptor of B for a k-step of 32 bytes.
#[inline(always)]
fn descriptor<const TB: i32>(b: u32, step: usize) -> u64 {
    if TB == 1 {
        frag::descriptor(b + step as u32 * 16 * 128, 128, SMEM_TILE as u32)
    } else {
        frag::descriptor(b + step as u32 * 32, 128, 16)
    }
}

impl<E: WgmmaElem> Atom<E> for Wgmma {
    const LATER: bool = true;

    #[inline(always)]
    fn multiply<const C: usize, const TB: i32>(acc: &mut Acc<C>, a: u32, b: u32) {
        acc.fence();
        unroll!(step < 4, {
            let a = frag::descriptor(a + step as u32 * 32, 128, 16);
            E::mma::<C, 0, TB>(acc, a, descriptor::<TB>(b, step));
        });
        wgmma::commit();
    }
}

impl Atom<Tf32> for Wgmma {
    const LATER: bool = false;

    /// Rounds A in registers. The copy has rounded B already.
    #[inline(always)]
    fn multiply<const C: usize, const TB: i32>(acc: &mut Acc<C>, a: u32, b: u32) {
        let (warp, lane) = gpu::warp_and_lane();
        let (row, chunk) = frag::ldmatrix_x4(lane);
        let row = warp * 16 + row;
        let mut own = [[0u32; 4]; 4];
        unroll!(step < 4, {
            let from = a + frag::swizzle(row, 2 * step as u32 + chunk, 128);
            own[step] = matrix::ldmatrix_x4(from).map(matrix::cvt_rna_tf32);
        });
        acc.fence();
        unroll!(step < 4, {
            acc.mma_tf32_registers(own[step], descriptor::<0>(b, step));
        });
        wgmma::commit();
    }
}

impl Atom<Tf32> for MmaSync {
    const LATER: bool = false;

    /// Rounds both operands in registers. `TB` must be 0.
    #[inline(always)]
    fn multiply<const C: usize, const TB: i32>(acc: &mut Acc<C>, a: u32, b: u32) {
        let (warp, lane) = gpu::warp_and_lane();
        let (row, chunk) = frag::ldmatrix_x4(lane);
        let (column, deep) = frag::ldmatrix_x4_columns(lane);
        unroll!(step < 4, {
            let step = step as u32;
            let from = a + frag::swizzle(warp * 16 + row, 2 * step + chunk, 128);
            let own = matrix::ldmatrix_x4(from).map(matrix::cvt_rna_tf32);
            unroll!(c < C, most 4, {
                unroll!(pair < 4, {
                    let column = c as u32 * 64 + pair as u32 * 16 + column;
                    let from = b + frag::swizzle(column, 2 * step + deep, 128);
                    let two = matrix::ldmatrix_x4(from).map(matrix::cvt_rna_tf32);
                    unroll!(n < 2, {
                        let at = 8 * pair + 4 * n;
                        let mut sums = [0, 1, 2, 3].map(|i| acc.0[c][at + i]);
                        matrix::mma_tf32(&mut sums, own, [two[2 * n], two[2 * n + 1]]);
                        unroll!(i < 4, { acc.0[c][at + i] = sums[i] });
                    });
                });
            });
        });
    }

    #[inline(always)]
    fn wait<const C: usize, const PENDING: u32>(_: &mut Acc<C>) {}

    #[inline(always)]
    fn fence_proxy_async() {}
}

impl<E: WgmmaElem + MmaElem> Atom<E> for MmaSync {
    const LATER: bool = false;

    #[inline(always)]
    fn multiply<const C: usize, const TB: i32>(acc: &mut Acc<C>, a: u32, b: u32) {
        let (warp, lane) = gpu::warp_and_lane();
        let (row, chunk) = frag::ldmatrix_x4(lane);
        let (column, deep) = frag::ldmatrix_x4_columns(lane);
        unroll!(step < 4, {
            let step = step as u32;
            let from = a + frag::swizzle(warp * 16 + row, 2 * step + chunk, 128);
            let own = matrix::ldmatrix_x4(from);
            unroll!(c < C, most 4, {
                unroll!(pair < 4, {
                    let across = pair as u32 * 2;
                    let two = if TB == 1 {
                        let from = frag::swizzle(step * 16 + row, across + chunk, 128);
                        matrix::ldmatrix_x4_trans(b + (c * SMEM_TILE) as u32 + from)
                    } else {
                        let column = c as u32 * 64 + across * 8 + column;
                        matrix::ldmatrix_x4(b + frag::swizzle(column, 2 * step + deep, 128))
                    };
                    unroll!(n < 2, {
                        let at = 8 * pair + 4 * n;
                        let mut sums = [0, 1, 2, 3].map(|i| acc.0[c][at + i]);
                        <E as MmaElem>::mma(&mut sums, own, [two[2 * n], two[2 * n + 1]]);
                        unroll!(i < 4, { acc.0[c][at + i] = sums[i] });
                    });
                });
            });
        });
    }

    #[inline(always)]
    fn wait<const C: usize, const PENDING: u32>(_: &mut Acc<C>) {}

    #[inline(always)]
    fn fence_proxy_async() {}
}
