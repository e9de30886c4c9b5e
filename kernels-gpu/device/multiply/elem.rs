//! Element types, by the products that Tensor Cores have of them.

use crate::abi::*;
use crate::device::ptx::matrix;
use crate::device::ptx::wgmma::Acc;

/// An element type that `mma.sync` multiplies.
pub trait StepElem {
    /// `D += A B` of 16 x 8 sums, 32 bytes deep. The fragments are what `ldmatrix` delivers, whatever the type.
    fn step(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]);
    /// The same where Tensor Cores multiply fp8.
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

/// Types of 8 bits are multiplied as f16, which holds each of their values. Which product of a sum comes first does not
/// matter: either half of the bytes of each fragment's register makes a product of 16 deep.
macro_rules! by_f16 {
    ($($elem:ident: $convert:ident, $own:ident;)+) => {$(
        impl StepElem for $elem {
            #[inline(always)]
            fn step(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
                let wide = |x: u32| [matrix::$convert(x), matrix::$convert(x >> 16)];
                let [a0, a1, a2, a3] = a.map(wide);
                let [b0, b1] = b.map(wide);
                matrix::mma_f16(d, [a0[0], a1[0], a0[1], a1[1]], b0);
                matrix::mma_f16(d, [a2[0], a3[0], a2[1], a3[1]], b1);
            }

            #[inline(always)]
            fn step_fp8(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
                // Sums of fp8 within Tensor Cores have fewer bits than f32 (SageAttention2, arXiv 2411.10958, section 3).
                let mut products = [0.0; 4];
                matrix::$own(&mut products, a, b);
                unroll!(i < 4, { d[i] += products[i] });
            }
        }
    )+};
}

by_f16! {
    E4m3: f16x2_from_e4m3, mma_e4m3;
    E5m2: f16x2_from_e5m2, mma_e5m2;
}

/// An element type of 8 bits that warpgroups multiply.
pub trait BytesElem: ElemInfo + StepElem {
    /// `wgmma` keeps fewer bits of a sum than f32 has: sums over a stage are added to f32 registers of their own.
    const PROMOTED: bool;
    /// Accumulators are i32, in f32 registers.
    const WHOLE: bool;
    /// `D = A B` by `wgmma`, or `D += A B` where `onto`.
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

/// An element type with a sparse atom: A keeps two of four along k, 32 bytes a step, and B has 64 bytes a step.
pub trait SparseElem {
    /// B lies as `[k, n]`, else as `[n, k]`.
    const B_ROWS: bool;
    /// `D += A B` by `wgmma`.
    fn wgmma<const C: usize, const SELECTOR: i32>(acc: &mut Acc<C>, a: u64, b: u64, meta: u32);
    /// `D += A B` of 16 x 8 sums.
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
    /// The selector is 0.
    #[inline(always)]
    fn wgmma<const C: usize, const S: i32>(acc: &mut Acc<C>, a: u64, b: u64, meta: u32) {
        acc.mma_sparse_s8(a, b, meta)
    }
    #[inline(always)]
    fn step<const S: i32>(d: &mut [f32; 4], a: [u32; 4], b: [u32; 4], meta: u32) {
        matrix::mma_sparse_s8::<0>(d, a, b, meta)
    }
}
