//! Products of a warpgroup with at most 64 columns of B and accumulators [`Thin`]: by `wgmma`, or by `ldmatrix` and
//! `mma.sync`.

use super::gpu;
use super::mma::MmaElem;
use super::multiply::{Columns, Multiply, Rows, StepElem};
use super::ptx::wgmma_thin::Thin;
use crate::abi::*;

/// Element type with a `wgmma` atom for few columns.
pub trait ThinElem: MmaElem + StepElem {
    /// `D += A B` of depth 16 with A in registers.
    fn mma_thin<const N: usize>(acc: &mut Thin<N>, a: [u32; 4], b: u64);

    /// `D += A B` of depth 16 with A in shared memory, contiguous along k.
    fn mma_thin_shared<const N: usize>(acc: &mut Thin<N>, a: u64, b: u64);
}

macro_rules! thin_elem {
    ($elem:ident, $mma:ident, $shared:ident) => {
        impl ThinElem for $elem {
            #[inline(always)]
            fn mma_thin<const N: usize>(acc: &mut Thin<N>, a: [u32; 4], b: u64) {
                acc.$mma(a, b)
            }
            #[inline(always)]
            fn mma_thin_shared<const N: usize>(acc: &mut Thin<N>, a: u64, b: u64) {
                acc.$shared(a, b)
            }
        }
    };
}

thin_elem!(F16, mma_f16, mma_f16_shared);
thin_elem!(Bf16, mma_bf16, mma_bf16_shared);

/// Tensor Core atom of four warps for 64 rows of A and `N` columns of B. Rows of B have `N` elements and are
/// contiguous. Operands in shared memory are named by descriptors.
pub trait MultiplyThin: Multiply {
    /// [`Multiply::fence`].
    fn fence_thin<const N: usize>(acc: &mut Thin<N>);
    /// Waits until all products are complete.
    fn wait_thin<const N: usize>(acc: &mut Thin<N>);
    /// `D += A B` of depth 64. `a`: the fragments of each warp's 16 rows.
    fn mma_thin<E: ThinElem, const N: usize>(acc: &mut Thin<N>, a: [[u32; 4]; 4], b: u64);
    /// `D += A B` of depth 128. A is stored as two contiguous tiles of 64 x 64.
    fn mma_thin_shared<E: ThinElem, const N: usize>(acc: &mut Thin<N>, a: u64, b: u64);
}

/// Advances a descriptor by `units` of 16 bytes. The address is in its lowest bits.
#[inline(always)]
fn advanced(descriptor: u64, units: u32) -> u64 {
    descriptor & 0xffff_ffff_0000_0000 | (descriptor as u32 + units) as u64
}

impl MultiplyThin for Wgmma {
    #[inline(always)]
    fn fence_thin<const N: usize>(acc: &mut Thin<N>) {
        acc.fence();
    }

    #[inline(always)]
    fn wait_thin<const N: usize>(acc: &mut Thin<N>) {
        acc.wait::<0>();
    }

    #[inline(always)]
    fn mma_thin<E: ThinElem, const N: usize>(acc: &mut Thin<N>, a: [[u32; 4]; 4], b: u64) {
        // 16 rows take `row bytes` units of 16 bytes.
        unroll!(t < 4, { E::mma_thin::<N>(acc, a[t], advanced(b, t as u32 * N as u32 * 2)) });
    }

    #[inline(always)]
    fn mma_thin_shared<E: ThinElem, const N: usize>(acc: &mut Thin<N>, a: u64, b: u64) {
        unroll!(t < 8, {
            let place = (t / 4 * SMEM_TILE + t % 4 * 32) as u32;
            let (a, b) = (advanced(a, place / 16), advanced(b, t as u32 * N as u32 * 2));
            E::mma_thin_shared::<N>(acc, a, b);
        });
    }
}

/// Adds the product of a fragment of 16 rows and depth 16. `columns(n)` returns the fragments of two times 8 columns.
#[inline(always)]
fn add<E: StepElem, const N: usize>(
    acc: &mut Thin<N>,
    a: [u32; 4],
    columns: impl Fn(u32) -> [u32; 4],
) {
    unroll!(n < N / 16, most 4, {
        let b = columns(n as u32);
        unroll!(half < 2, {
            let at = 4 * (2 * n + half);
            let mut sums = [0, 1, 2, 3].map(|i| acc.0[at + i]);
            E::step(&mut sums, a, [b[2 * half], b[2 * half + 1]]);
            unroll!(i < 4, { acc.0[at + i] = sums[i] });
        });
    });
}

impl MultiplyThin for MmaSync {
    #[inline(always)]
    fn fence_thin<const N: usize>(_: &mut Thin<N>) {}

    #[inline(always)]
    fn wait_thin<const N: usize>(_: &mut Thin<N>) {}

    #[inline(always)]
    fn mma_thin<E: ThinElem, const N: usize>(acc: &mut Thin<N>, a: [[u32; 4]; 4], b: u64) {
        let (_, lane) = gpu::warp_and_lane();
        let b = Columns::<1>::from(b, 0, lane);
        unroll!(t < 4, { add::<E, N>(acc, a[t], |n| b.fragments(n, t as u32)) });
    }

    #[inline(always)]
    fn mma_thin_shared<E: ThinElem, const N: usize>(acc: &mut Thin<N>, a: u64, b: u64) {
        let (warp, lane) = gpu::warp_and_lane();
        let a = Rows::<0>::from(a, warp * 16, lane);
        let b = Columns::<1>::from(b, 0, lane);
        unroll!(t < 8, {
            // In rows of 128 bytes, k-steps differ only in address bits that the swizzle changes by XOR, without a
            // carry.
            let from = a.first.flipped((t % 4 * 32) as u32).bytes((t / 4 * SMEM_TILE) as u32);
            add::<E, N>(acc, from.ldmatrix(), |n| b.fragments(n, t as u32));
        });
    }
}
