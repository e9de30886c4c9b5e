//! Arithmetic of the element types: raw vectors as loaded, accumulators, and rounding at the store.

use super::memory::Word;
use super::ptx::{matrix, warp};
use super::shared::SharedWord;
use crate::abi::*;

/// Up to 16 bytes as stored in memory. They are decoded at their use, so loads in flight take few registers.
pub type Raw = [u32; 4];

/// An element type and its accumulator.
pub trait Elem: ElemInfo {
    /// Accumulator type: that of [`Dtype::accumulator`].
    type Acc: Copy + SharedWord + Word<Value = Self::Acc>;
    /// Zero as an accumulator.
    const ZERO: Self::Acc;
    const BYTES: u32 = Self::DTYPE.bytes() as u32;
    /// Bytes of one accumulator.
    const ACC_BYTES: u32 = {
        assert!(size_of::<Self::Acc>() == Self::DTYPE.acc_bytes());
        Self::DTYPE.acc_bytes() as u32
    };

    /// Mask of a raw vector without the sign bits. A vector contains only zeros if all masked bits are 0.
    const MAGNITUDE: Raw;

    /// Returns element `i` of a raw vector as an accumulator.
    fn get(raw: &Raw, i: usize) -> Self::Acc;
    /// Rounds and packs accumulators. Accumulators beyond the vector are ignored.
    fn put(values: &[Self::Acc; 8]) -> Raw;
    /// Converts a scalar parameter.
    fn scalar(x: f64) -> Self::Acc;
    /// `a * b + c` with one rounding.
    fn fma(a: Self::Acc, b: Self::Acc, c: Self::Acc) -> Self::Acc;
    /// `a * b`, rounded. The compiler must not fuse it with an addition.
    fn mul(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn add(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// Maximum; NaN if either value is NaN.
    fn max(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// Equality in which NaN equals NaN.
    fn equal(a: Self::Acc, b: Self::Acc) -> bool;
    /// ReLU. NaN stays NaN.
    fn relu(a: Self::Acc) -> Self::Acc;
    /// GELU: `x / 2 (1 + erf(x / sqrt 2))`.
    fn gelu(a: Self::Acc) -> Self::Acc;
    /// GELU of four values, with the accuracy that the element type can store.
    #[inline(always)]
    fn gelu_of_four(a: [Self::Acc; 4]) -> [Self::Acc; 4] {
        a.map(Self::gelu)
    }
    /// Splits an accumulator into two 32-bit words, the low word first.
    fn words(a: Self::Acc) -> [u32; 2];
    /// Inverse of [`Elem::words`].
    fn from_words(w: [u32; 2]) -> Self::Acc;

    /// `shfl.xor` of an accumulator: returns the value of lane `lane ^ other`. Every lane of the warp must call it
    /// together.
    #[inline(always)]
    fn shfl_xor(a: Self::Acc, other: u32) -> Self::Acc {
        let [low, high] = Self::words(a);
        let high = if Self::ACC_BYTES == 8 { warp::shfl_xor(high, other) } else { 0 };
        Self::from_words([warp::shfl_xor(low, other), high])
    }
}

/// P(X > x) of a standard normal distribution for x >= 0: erf by Abramowitz and Stegun 7.1.26, error at most 1e-7.
#[inline(always)]
pub fn normal_tail(x: f32) -> f32 {
    let z = x * core::f32::consts::FRAC_1_SQRT_2;
    let t = matrix::rcp_approx(1.0 + 0.327_591_1 * z);
    let poly = ((((1.061_405_4 * t - 1.453_152_1) * t + 1.421_413_8) * t - 0.284_496_72) * t
        + 0.254_829_6)
        * t;
    0.5 * poly * matrix::ex2_approx(-z * z * core::f32::consts::LOG2_E)
}

/// GELU in f32. An infinity gives its limit; NaN stays NaN.
#[inline(always)]
fn gelu_f32(x: f32) -> f32 {
    let magnitude = f32::from_bits(x.to_bits() & 0x7fff_ffff);
    // GELU is x P(X <= x). The tail is 1 - P (x > 0) or P itself (x < 0). The tail is 0 from far below 32 on, and
    // infinity times 0 would be NaN: hence the limit of 32.
    F32::relu(x) - magnitude.min(32.0) * normal_tail(magnitude)
}

/// Polynomial of log2 P(X > x) for a standard normal distribution, highest coefficient first. The relative error of its
/// power of two is 1.2e-5 up to x = 5.5, 2e-5 up to 6, and 3.2e-4 up to 8. From 8 on the relative error is not bounded;
/// there GELU(-x) is below 5e-15 in magnitude.
const TAIL: [f32; 8] = [
    -1.543_872_1e-6,
    5.530_176_7e-5,
    -8.768_957e-4,
    8.280_373e-3,
    -5.345_977e-2,
    -0.458_999_37,
    -1.151_025_3,
    -1.000_014_3,
];

/// GELU of four values whose results are rounded to 16 bits. Each takes one exponential; erf would take a reciprocal in
/// addition. Four independent chains hide the latency of their steps. The error before rounding is at most 1.5e-6 (near
/// 1): of all finite f16 values, 322 give the neighbour of the correctly rounded result.
#[inline(always)]
fn gelu_rounded(x: [f32; 4]) -> [f32; 4] {
    // Limited to 16, because infinity times zero would be NaN.
    let m = x.map(|x| f32::from_bits(x.to_bits() & 0x7fff_ffff).min(16.0));
    let mut log = [TAIL[0]; 4];
    unroll!(k < 7, {
        unroll!(i < 4, {
            log[i] = matrix::fma_f32(log[i], m[i], TAIL[k + 1]);
        });
    });
    let tail = log.map(matrix::ex2_approx_ftz);
    let mut y = [0f32; 4];
    unroll!(i < 4, {
        y[i] = matrix::fma_f32(-m[i], tail[i], matrix::max_nan(x[i], 0.0));
    });
    y
}

macro_rules! float {
    ($t:ident) => {
        #[inline(always)]
        fn add(a: $t, b: $t) -> $t {
            a + b
        }
        #[inline(always)]
        fn max(a: $t, b: $t) -> $t {
            if a >= b || a.is_nan() { a } else { b }
        }
        #[inline(always)]
        fn equal(a: $t, b: $t) -> bool {
            a == b || (a.is_nan() && b.is_nan())
        }
        #[inline(always)]
        fn relu(a: $t) -> $t {
            if a < 0.0 { 0.0 } else { a }
        }
    };
}

macro_rules! f32_accumulator {
    () => {
        type Acc = f32;
        const ZERO: f32 = 0.0;
        float!(f32);

        #[inline(always)]
        fn scalar(x: f64) -> f32 {
            x as f32
        }
        #[inline(always)]
        fn fma(a: f32, b: f32, c: f32) -> f32 {
            matrix::fma_f32(a, b, c)
        }
        #[inline(always)]
        fn mul(a: f32, b: f32) -> f32 {
            matrix::mul_f32(a, b)
        }
        #[inline(always)]
        fn gelu(a: f32) -> f32 {
            gelu_f32(a)
        }
        #[inline(always)]
        fn words(a: f32) -> [u32; 2] {
            [a.to_bits(), 0]
        }
        #[inline(always)]
        fn from_words(w: [u32; 2]) -> f32 {
            f32::from_bits(w[0])
        }
    };
}

macro_rules! sixteen_bits {
    ($pack:ident) => {
        const MAGNITUDE: Raw = [0x7fff_7fff; 4];
        #[inline(always)]
        fn gelu_of_four(a: [f32; 4]) -> [f32; 4] {
            gelu_rounded(a)
        }
        #[inline(always)]
        fn put(v: &[f32; 8]) -> Raw {
            let pack = matrix::$pack;
            [pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7])]
        }
    };
}

impl Elem for F32 {
    f32_accumulator!();
    const MAGNITUDE: Raw = [0x7fff_ffff; 4];
    #[inline(always)]
    fn get(raw: &Raw, i: usize) -> f32 {
        f32::from_bits(raw[i & 3])
    }
    #[inline(always)]
    fn put(v: &[f32; 8]) -> Raw {
        [v[0].to_bits(), v[1].to_bits(), v[2].to_bits(), v[3].to_bits()]
    }
}

impl Elem for Tf32 {
    f32_accumulator!();
    const MAGNITUDE: Raw = [0x7fff_ffff; 4];
    #[inline(always)]
    fn get(raw: &Raw, i: usize) -> f32 {
        F32::get(raw, i)
    }
    #[inline(always)]
    fn put(v: &[f32; 8]) -> Raw {
        F32::put(v)
    }
}

impl Elem for F16 {
    f32_accumulator!();
    #[inline(always)]
    fn get(raw: &Raw, i: usize) -> f32 {
        matrix::f32_from_f16((raw[(i / 2) & 3] >> (i % 2 * 16)) & 0xffff)
    }
    sixteen_bits!(f16x2_from_f32);
}

impl Elem for Bf16 {
    f32_accumulator!();
    #[inline(always)]
    fn get(raw: &Raw, i: usize) -> f32 {
        // The bits of a bf16 are the upper half of the f32 of equal value.
        let word = raw[(i / 2) & 3];
        f32::from_bits(if i.is_multiple_of(2) { word << 16 } else { word & 0xffff_0000 })
    }
    sixteen_bits!(bf16x2_from_f32);
}

impl Elem for F64 {
    type Acc = f64;
    const ZERO: f64 = 0.0;
    const MAGNITUDE: Raw = [u32::MAX, 0x7fff_ffff, u32::MAX, 0x7fff_ffff];
    #[inline(always)]
    fn get(raw: &Raw, i: usize) -> f64 {
        Self::from_words([raw[(i * 2) & 3], raw[(i * 2 + 1) & 3]])
    }
    #[inline(always)]
    fn put(v: &[f64; 8]) -> Raw {
        let ([a, b], [c, d]) = (Self::words(v[0]), Self::words(v[1]));
        [a, b, c, d]
    }
    #[inline(always)]
    fn scalar(x: f64) -> f64 {
        x
    }
    #[inline(always)]
    fn fma(a: f64, b: f64, c: f64) -> f64 {
        matrix::fma_f64(a, b, c)
    }
    #[inline(always)]
    fn mul(a: f64, b: f64) -> f64 {
        matrix::mul_f64(a, b)
    }
    float!(f64);
    #[inline(always)]
    fn gelu(a: f64) -> f64 {
        gelu_f32(a as f32) as f64
    }
    #[inline(always)]
    fn words(a: f64) -> [u32; 2] {
        let bits = a.to_bits();
        [bits as u32, (bits >> 32) as u32]
    }
    #[inline(always)]
    fn from_words(w: [u32; 2]) -> f64 {
        f64::from_bits((w[1] as u64) << 32 | w[0] as u64)
    }
}
