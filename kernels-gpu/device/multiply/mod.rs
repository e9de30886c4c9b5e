//! Tensor Core atoms of a warpgroup: `wgmma`, or `ldmatrix` and `mma.sync` on the same operands in shared memory. A
//! product has 32 bytes of depth. Bodies name operands by [`frag::descriptor`](crate::frag::descriptor) and take the
//! atom as a parameter.

mod elem;
mod fragments;
mod synchronous;

use super::ptx::barrier;
use super::ptx::wgmma::{self, Acc};
use super::shared::Shared;
use super::warpgroup::WgmmaElem;
use crate::abi::*;
pub use elem::{BytesElem, SparseElem, StepElem};
pub(super) use fragments::{Columns, Rows};

/// Tensor Core atom of four warps: 64 rows of A times `C` x 64 columns of B. Operands are descriptors of shared memory.
pub trait Multiply: AtomInfo {
    /// Lowers the register limit of this warpgroup to `COUNT` per thread, if the GPU has `setmaxnreg`.
    fn setmaxnreg_dec<const COUNT: u32>();
    /// Raises the register limit of this warpgroup to `COUNT` per thread, if the GPU has `setmaxnreg`.
    fn setmaxnreg_inc<const COUNT: u32>();
    /// Orders earlier accesses to the accumulators before the next product.
    fn fence<const C: usize>(acc: &mut Acc<C>);
    /// Commits a group of products.
    fn commit();
    /// Waits until at most `PENDING` groups are pending.
    fn wait<const C: usize, const PENDING: u32>(acc: &mut Acc<C>);
    /// Makes this thread's stores to shared memory visible to products and the copy engine.
    fn fence_proxy_async();
    /// `D += A B`. `TA`, `TB` 1: the operand is contiguous along m, n instead of k.
    fn mma<E: WgmmaElem, const C: usize, const TA: i32, const TB: i32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
    );
    /// [`Self::mma`] of operands whose layout is `order`. An argument, because an associated constant cannot be a const
    /// argument; after inlining, one arm is left.
    #[inline(always)]
    fn mma_ordered<E: WgmmaElem, const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, order: u32) {
        match (order & A_COLUMNS != 0, order & B_COLUMNS != 0) {
            (false, false) => Self::mma::<E, C, 0, 1>(acc, a, b),
            (true, false) => Self::mma::<E, C, 1, 1>(acc, a, b),
            (false, true) => Self::mma::<E, C, 0, 0>(acc, a, b),
            (true, true) => Self::mma::<E, C, 1, 0>(acc, a, b),
        }
    }
    /// [`Self::mma`] with A in registers: the fragment of each warp's 16 rows. [`MmaQuarters`] does not implement it.
    fn mma_registers<E: WgmmaElem, const C: usize, const TB: i32>(
        acc: &mut Acc<C>,
        a: [u32; 4],
        b: u64,
    );
    /// [`Self::mma`] with fragments of A from the function `a`. `a(0)` returns the fragment of each warp's 16 rows; for
    /// [`MmaQuarters`], `a(0)` to `a(3)` return those of all 64 rows. `None` means zeros and must be the same in all
    /// lanes.
    fn mma_fragments<E: WgmmaElem, const C: usize, const TB: i32>(
        acc: &mut Acc<C>,
        a: impl Fn(u32) -> Option<[u32; 4]>,
        b: u64,
    );
    /// [`Self::mma`] of the first `rows` rows of A; further groups of 16 rows may be skipped.
    fn mma_rows<E: WgmmaElem, const C: usize, const TA: i32, const TB: i32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
        rows: u32,
    );
    /// `D = A B` in TF32, or `D += A B` if `onto`. Both operands are contiguous along k and truncated to 10 bits of
    /// mantissa.
    fn mma_tf32<const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, onto: bool);
    /// `D += A B` in TF32 with A in registers: the fragment of each warp's 16 rows. [`MmaQuarters`] does not implement
    /// it. B is rounded here if the copy engine did not round it.
    fn mma_tf32_registers<const C: usize>(acc: &mut Acc<C>, a: [u32; 4], b: u64);
    /// `D = A B` of 8-bit elements, or `D += A B` if `onto`. Both operands are contiguous along k.
    fn mma_bytes<E: BytesElem, const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, onto: bool);
    /// `D += A B` of `M` times 64 rows, where A stores two of four elements along k. `meta(i, 0)` returns the lane's
    /// metadata of its warp's 16 rows of the 64 rows `i`; for [`MmaQuarters`], `meta(i, 0)` to `meta(i, 3)` return
    /// those of all 64.
    fn mma_sparse<E: SparseElem, const C: usize, const M: usize, const SELECTOR: i32>(
        acc: &mut [Acc<C>; M],
        a: [u64; M],
        b: u64,
        meta: impl Fn(usize, usize) -> u32,
    );
    /// Exchanges accumulators after the last product, so that each warp holds all columns of its 16 rows. With
    /// [`MmaQuarters`] each warp has computed all rows of a quarter of the columns. All four warps call it together.
    /// `smem`: [`SMEM_TILE`] bytes of scratch memory; `id`: a named barrier of the warpgroup.
    fn exchange_quarters<const C: usize>(acc: &mut Acc<C>, smem: Shared<u8>, id: u32);
}

impl Multiply for Wgmma {
    #[inline(always)]
    fn setmaxnreg_dec<const COUNT: u32>() {
        barrier::setmaxnreg_dec::<COUNT>();
    }

    #[inline(always)]
    fn setmaxnreg_inc<const COUNT: u32>() {
        barrier::setmaxnreg_inc::<COUNT>();
    }

    #[inline(always)]
    fn fence<const C: usize>(acc: &mut Acc<C>) {
        acc.fence();
    }

    #[inline(always)]
    fn commit() {
        wgmma::commit();
    }

    #[inline(always)]
    fn wait<const C: usize, const PENDING: u32>(acc: &mut Acc<C>) {
        acc.wait::<PENDING>();
    }

    #[inline(always)]
    fn fence_proxy_async() {
        barrier::fence_proxy_async();
    }

    #[inline(always)]
    fn mma<E: WgmmaElem, const C: usize, const TA: i32, const TB: i32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
    ) {
        E::mma::<C, TA, TB>(acc, a, b);
    }

    #[inline(always)]
    fn mma_registers<E: WgmmaElem, const C: usize, const TB: i32>(
        acc: &mut Acc<C>,
        a: [u32; 4],
        b: u64,
    ) {
        E::mma_registers::<C, TB>(acc, a, b);
    }

    #[inline(always)]
    fn mma_fragments<E: WgmmaElem, const C: usize, const TB: i32>(
        acc: &mut Acc<C>,
        a: impl Fn(u32) -> Option<[u32; 4]>,
        b: u64,
    ) {
        E::mma_registers::<C, TB>(acc, a(0).unwrap_or([0; 4]), b);
    }

    #[inline(always)]
    fn mma_rows<E: WgmmaElem, const C: usize, const TA: i32, const TB: i32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
        _: u32,
    ) {
        E::mma::<C, TA, TB>(acc, a, b);
    }

    #[inline(always)]
    fn mma_tf32<const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, onto: bool) {
        acc.mma_tf32(a, b, onto);
    }

    #[inline(always)]
    fn mma_tf32_registers<const C: usize>(acc: &mut Acc<C>, a: [u32; 4], b: u64) {
        acc.mma_tf32_registers(a, b);
    }

    #[inline(always)]
    fn mma_bytes<E: BytesElem, const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, onto: bool) {
        E::wgmma(acc, a, b, onto);
    }

    #[inline(always)]
    fn mma_sparse<E: SparseElem, const C: usize, const M: usize, const SELECTOR: i32>(
        acc: &mut [Acc<C>; M],
        a: [u64; M],
        b: u64,
        meta: impl Fn(usize, usize) -> u32,
    ) {
        unroll!(i < M, most 4, { E::wgmma::<C, SELECTOR>(&mut acc[i], a[i], b, meta(i, 0)) });
    }

    #[inline(always)]
    fn exchange_quarters<const C: usize>(_: &mut Acc<C>, _: Shared<u8>, _: u32) {}
}
