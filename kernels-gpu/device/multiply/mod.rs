//! Products of a warpgroup over 32 bytes of depth: `wgmma`, or `ldmatrix` and `mma.sync` of the same operands in shared
//! memory. A body names its operands by [`frag::descriptor`](crate::frag::descriptor) and takes the atom as a parameter.

mod elem;
mod fragments;
mod synchronous;

use super::ptx::barrier;
use super::ptx::wgmma::{self, Acc};
use super::warpgroup::WgmmaElem;
use crate::abi::*;
pub use elem::{BytesElem, SparseElem, StepElem};
pub(super) use fragments::{Columns, Rows};

/// What four warps multiply with: 64 rows of A by `C` x 64 columns of B. Operands are descriptors of shared memory.
pub trait Multiply: AtomInfo {
    /// Gives registers of this warpgroup back, down to `COUNT` a thread, where registers move.
    fn setmaxnreg_dec<const COUNT: u32>();
    /// Takes registers up to `COUNT` a thread for this warpgroup, where registers move.
    fn setmaxnreg_inc<const COUNT: u32>();
    /// Orders earlier accesses to the accumulators before the next product.
    fn fence<const C: usize>(acc: &mut Acc<C>);
    /// Closes a group of products.
    fn commit();
    /// Waits until at most `PENDING` groups are under way.
    fn wait<const C: usize, const PENDING: u32>(acc: &mut Acc<C>);
    /// Makes this thread's writes to shared memory visible to products and the copy engine.
    fn fence_proxy_async();
    /// `D += A B`. `TA`, `TB` 1: the operand is contiguous along m, n instead of k.
    fn mma<E: WgmmaElem, const C: usize, const TA: i32, const TB: i32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
    );
    /// [`Self::mma`] of operands that lie as `ORDER` says.
    #[inline(always)]
    fn mma_ordered<E: WgmmaElem, const C: usize, const ORDER: u32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
    ) {
        match (ORDER & A_COLUMNS != 0, ORDER & B_COLUMNS != 0) {
            (false, false) => Self::mma::<E, C, 0, 1>(acc, a, b),
            (true, false) => Self::mma::<E, C, 1, 1>(acc, a, b),
            (false, true) => Self::mma::<E, C, 0, 0>(acc, a, b),
            (true, true) => Self::mma::<E, C, 1, 0>(acc, a, b),
        }
    }
    /// [`Self::mma`] with the fragment of each warp's 16 rows of A in registers. Not of quarters.
    fn mma_registers<E: WgmmaElem, const C: usize, const TB: i32>(
        acc: &mut Acc<C>,
        a: [u32; 4],
        b: u64,
    );
    /// [`Self::mma`] with A's fragments of 16 rows from wherever they are: of the 16 rows of each warp, asked for by 0, or
    /// those of all 64 for quarters, by 0 to 3. `None`, the same for all lanes, is zeros.
    fn mma_fragments<E: WgmmaElem, const C: usize, const TB: i32>(
        acc: &mut Acc<C>,
        a: impl Fn(u32) -> Option<[u32; 4]>,
        b: u64,
    );
    /// [`Self::mma`], which may leave out 16 rows of A from `rows` on at a time.
    fn mma_rows<E: WgmmaElem, const C: usize, const TA: i32, const TB: i32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
        rows: u32,
    );
    /// `D += A B` of fragments from wherever they are: A's as of [`Self::mma_fragments`], B's of two times 8 columns, `n` x
    /// 16 columns behind this warp's first. Of `mma.sync` alone.
    fn mma_both<E: StepElem, const C: usize>(
        acc: &mut Acc<C>,
        a: impl Fn(u32) -> Option<[u32; 4]>,
        b: impl Fn(u32) -> [u32; 4],
    );
    /// TF32, `D = A B`, or `D += A B` where `onto`; both contiguous along k. Bits below the 10 of the mantissa are cut
    /// off.
    fn mma_tf32<const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, onto: bool);
    /// TF32, `D += A B`, with the fragment of each warp's 16 rows of A in registers. Not of quarters. Where no copy
    /// engine rounded B on its way, that is done here.
    fn mma_tf32_registers<const C: usize>(acc: &mut Acc<C>, a: [u32; 4], b: u64);
    /// Elements of 8 bits, `D = A B`, or `D += A B` where `onto`; both contiguous along k.
    fn mma_bytes<E: BytesElem, const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, onto: bool);
    /// `D += A B` of `M` times 64 rows, where A keeps two of four along k. `meta` is asked by which 64 rows for the lane's
    /// word of its warp's 16 rows by 0, or for quarters of all 64 by 0 to 3.
    fn mma_sparse<E: SparseElem, const C: usize, const M: usize, const SELECTOR: i32>(
        acc: &mut [Acc<C>; M],
        a: [u64; M],
        b: u64,
        meta: impl Fn(usize, usize) -> u32,
    );
    /// Gives each warp the sums of its 16 rows, all columns, once all products are done. All four warps call it
    /// together; `smem`: [`SMEM_TILE`] bytes that nobody else uses, `id`: a named barrier of their own.
    fn exchange_quarters<const C: usize>(acc: &mut Acc<C>, smem: u32, id: u32);
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
    fn mma_both<E: StepElem, const C: usize>(
        _: &mut Acc<C>,
        _: impl Fn(u32) -> Option<[u32; 4]>,
        _: impl Fn(u32) -> [u32; 4],
    ) {
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
    fn exchange_quarters<const C: usize>(_: &mut Acc<C>, _: u32, _: u32) {}
}
