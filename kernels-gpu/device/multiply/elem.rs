//! Element types of [`Multiply`](super::Multiply), one trait per kind of product.

use crate::abi::*;
use crate::device::ptx::matrix;
use crate::device::ptx::wgmma::Acc;

/// Element type of `mma.sync`.
pub trait StepElem {
    /// `D += A B` of 16 x 8 accumulators and 32 bytes of depth. Fragments have the layout of `ldmatrix` for every type.
    fn step(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]);
    /// [`Self::step`] on GPUs whose Tensor Cores multiply fp8.
    #[inline(always)]
    fn step_fp8(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        Self::step(d, a, b)
    }
}

macro_rules! step {
    ($($elem:ident: $mma:ident;)+) => {$(
        impl StepElem for $elem {
            #[inline(always)]
            fn step(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
                matrix::$mma(d, a, b)
            }
        }
    )+};
}

step! {
    F16: mma_f16;
    Bf16: mma_bf16;
    Tf32: mma_tf32;
}

impl StepElem for Int8 {
    #[inline(always)]
    fn step(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        let mut sums = d.map(f32::to_bits);
        matrix::mma_s8_k32(&mut sums, a, b);
        *d = sums.map(f32::from_bits);
    }
}

/// 8-bit types are converted to f16, which represents all of their values. The order of products in a sum is free, so
/// two of the four bytes of a fragment register form one product of depth 16, the same two in A and B.
macro_rules! by_f16 {
    ($($elem:ident: $convert:ident, $own:ident;)+) => {$(
        impl StepElem for $elem {
            #[inline(always)]
            fn step(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
                let [a0, a1, a2, a3] = a.map(matrix::$convert);
                let [b0, b1] = b.map(matrix::$convert);
                matrix::mma_f16(d, [a0[0], a1[0], a0[1], a1[1]], b0);
                matrix::mma_f16(d, [a2[0], a3[0], a2[1], a3[1]], b1);
            }

            #[inline(always)]
            fn step_fp8(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
                // Tensor Cores sum fp8 products with fewer bits than f32 (SageAttention2, arXiv 2411.10958, section 3).
                let mut products = [0.0; 4];
                matrix::$own(&mut products, a, b);
                unroll!(i < 4, { d[i] += products[i] });
            }
        }
    )+};
}

by_f16! {
    E4m3: f16x4_from_e4m3, mma_e4m3;
    E5m2: f16x4_from_e5m2, mma_e5m2;
}

/// 8-bit element type of warpgroups.
pub trait BytesElem: ElemInfo + StepElem {
    /// Whether sums over a stage are added to separate f32 accumulators, because `wgmma` keeps fewer bits of a sum than
    /// f32.
    const PROMOTED: bool;
    /// Whether accumulators are i32, stored in the f32 registers.
    const WHOLE: bool;
    /// `D = A B` by `wgmma`, or `D += A B` if `onto`.
    fn wgmma<const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, onto: bool);
}

macro_rules! bytes {
    ($($name:ident: $mma:ident, promoted $promoted:literal, whole $whole:literal;)+) => {$(
        impl BytesElem for $name {
            const PROMOTED: bool = $promoted;
            const WHOLE: bool = $whole;
            #[inline(always)]
            fn wgmma<const C: usize>(acc: &mut Acc<C>, a: u64, b: u64, onto: bool) {
                acc.$mma(a, b, onto)
            }
        }
    )+};
}

bytes! {
    E4m3: mma_e4m3, promoted true, whole false;
    E5m2: mma_e5m2, promoted true, whole false;
    Int8: mma_s8, promoted false, whole true;
}

/// Element type with a sparse atom: A stores two of four elements along k. A k-step is 32 bytes of A and 64 bytes of B.
pub trait SparseElem {
    /// Whether B is stored as `[k, n]`; otherwise it is stored as `[n, k]`.
    const B_ROWS: bool;
    /// `D += A B` by `wgmma`.
    fn wgmma<const C: usize, const SELECTOR: i32>(acc: &mut Acc<C>, a: u64, b: u64, meta: u32);
    /// `D += A B` of 16 x 8 accumulators by `mma.sync`.
    fn step<const SELECTOR: i32>(d: &mut [f32; 4], a: [u32; 4], b: [u32; 4], meta: u32);
}

impl SparseElem for F16 {
    const B_ROWS: bool = true;
    #[inline(always)]
    fn wgmma<const C: usize, const S: i32>(acc: &mut Acc<C>, a: u64, b: u64, meta: u32) {
        acc.mma_sparse_f16::<S>(a, b, meta)
    }
    #[inline(always)]
    fn step<const S: i32>(d: &mut [f32; 4], a: [u32; 4], b: [u32; 4], meta: u32) {
        matrix::mma_sparse_f16::<S>(d, a, b, meta)
    }
}

impl SparseElem for Bf16 {
    const B_ROWS: bool = true;
    #[inline(always)]
    fn wgmma<const C: usize, const S: i32>(acc: &mut Acc<C>, a: u64, b: u64, meta: u32) {
        acc.mma_sparse_bf16::<S>(a, b, meta)
    }
    #[inline(always)]
    fn step<const S: i32>(d: &mut [f32; 4], a: [u32; 4], b: [u32; 4], meta: u32) {
        matrix::mma_sparse_bf16::<S>(d, a, b, meta)
    }
}

impl SparseElem for Int8 {
    const B_ROWS: bool = false;
    /// The selector must be 0.
    #[inline(always)]
    fn wgmma<const C: usize, const S: i32>(acc: &mut Acc<C>, a: u64, b: u64, meta: u32) {
        acc.mma_sparse_s8(a, b, meta)
    }
    #[inline(always)]
    fn step<const S: i32>(d: &mut [f32; 4], a: [u32; 4], b: [u32; 4], meta: u32) {
        matrix::mma_sparse_s8::<0>(d, a, b, meta)
    }
}
