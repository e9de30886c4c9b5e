//! Element types of sparse and dense tensors, and the types in which sums are accumulated.

use std::fmt::{Debug, Display};
use std::ops::{Add, AddAssign, Mul, Neg, Sub};

use half::{bf16, f16};

/// Kernels interpret elements by their bytes, so only the types of this list are element types.
mod sealed {
    pub trait Sealed {}

    macro_rules! seal {
        ($($t:ty)*) => { $(impl Sealed for $t {})* };
    }
    seal!(f32 f64 half::f16 half::bf16 crate::E4m3 crate::E5m2 i8 i32);
}

/// Type in which sums are accumulated: f32 or f64. This trait is sealed.
pub trait Accumulator:
    sealed::Sealed
    + bytemuck::Pod
    + Send
    + Sync
    + Default
    + Debug
    + Display
    + PartialEq
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + 'static
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Rounds to nearest even.
    fn from_f64(v: f64) -> Self;
    /// Converts exactly.
    fn to_f64(self) -> f64;
}

/// Element type: f32, f64, f16, bf16, fp8 ([`E4m3`](crate::E4m3), [`E5m2`](crate::E5m2)), i8 or i32. This trait is
/// sealed.
///
/// f16, bf16, fp8 and f32 accumulate in f32; f64 and integers accumulate in f64. Sums of products of 8-bit integers are
/// exact in f64.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no element type",
    label = "not an element type of einsparse",
    note = "element types are f32, f64, i8, i32, and `f16`, `bf16`, `E4m3`, `E5m2` of the formats"
)]
pub trait Element:
    sealed::Sealed + bytemuck::Pod + Send + Sync + PartialEq + Debug + Display + Default + 'static
{
    /// Type in which sums of products are accumulated.
    type Acc: Accumulator;
    /// Name of the type: `"f32"`, `"f64"`, `"f16"`, `"bf16"`, `"e4m3"`, `"e5m2"`, `"int8"` or `"int32"`.
    const NAME: &'static str;
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Converts exactly.
    fn to_acc(self) -> Self::Acc;
    /// Rounds once, to nearest even. Integers and fp8 saturate.
    fn from_acc(a: Self::Acc) -> Self;
    /// Converts exactly.
    fn to_f64(self) -> f64;
    /// Rounds once, to nearest even. Integers and fp8 saturate.
    fn from_f64(v: f64) -> Self;
}

macro_rules! accumulator {
    ($($t:ty)*) => {
        $(impl Accumulator for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            fn from_f64(v: f64) -> Self {
                v as $t
            }
            fn to_f64(self) -> f64 {
                self.into()
            }
        })*
    };
}

accumulator!(f32 f64);

/// Element types: name, accumulator, 0 and 1, conversion of `a` to the accumulator, from the accumulator, of `a` to f64
/// and from f64.
macro_rules! elements {
    ($($t:ty, $name:literal, $acc:ty, $zero:expr, $one:expr, $a:ident => $to_acc:expr, $from_acc:expr, $to:expr, $from:expr;)*) => {
        $(impl Element for $t {
            type Acc = $acc;
            const NAME: &'static str = $name;
            const ZERO: Self = $zero;
            const ONE: Self = $one;
            fn to_acc(self) -> $acc {
                let $a = self;
                $to_acc
            }
            fn from_acc($a: $acc) -> Self {
                $from_acc
            }
            fn to_f64(self) -> f64 {
                let $a = self;
                $to
            }
            fn from_f64($a: f64) -> Self {
                $from
            }
        })*
    };
}

// `as` saturates, and converts NaN to 0.
elements! {
    f32, "f32", f32, 0.0, 1.0, a => a, a, a.into(), a as f32;
    f64, "f64", f64, 0.0, 1.0, a => a, a, a, a;
    f16, "f16", f32, f16::ZERO, f16::ONE,
        a => a.to_f32(), f16::from_f32(a), a.into(), f16::from_f32(round_to_odd(a));
    bf16, "bf16", f32, bf16::ZERO, bf16::ONE,
        a => a.to_f32(), bf16::from_f32(a), a.into(), bf16::from_f32(round_to_odd(a));
    i8, "int8", f64, 0, 1,
        a => a.into(), a.round_ties_even() as i8, a.into(), a.round_ties_even() as i8;
    i32, "int32", f64, 0, 1,
        a => a.into(), a.round_ties_even() as i32, a.into(), a.round_ties_even() as i32;
}

/// Converts f64 to f32. Inexact results are rounded to the neighbor with the odd mantissa.
///
/// Rounding the result to nearest even gives the same value as rounding `v` once (Boldo and Melquiond 2008). Two
/// roundings to nearest do not, because the first may round a near-tie to a tie.
fn round_to_odd(v: f64) -> f32 {
    let near = v as f32;
    let back = f64::from(near);
    if near.is_nan() || back == v || near.to_bits() & 1 == 1 {
        return near;
    }
    let bits = near.to_bits();
    f32::from_bits(if back.abs() < v.abs() { bits + 1 } else { bits - 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_once() {
        let tie = 1.0 + f64::powi(2.0, -11);
        assert_eq!(<f16 as Element>::from_f64(tie), f16::ONE);
        let above = tie + f64::powi(2.0, -50);
        assert_eq!(<f16 as Element>::from_f64(above).to_bits(), f16::ONE.to_bits() + 1);
        let below = 1.0 + f64::powi(2.0, -8) - f64::powi(2.0, -50);
        assert_eq!(<bf16 as Element>::from_f64(below), bf16::ONE);
        assert_eq!(<bf16 as Element>::from_f64(-1e300), bf16::NEG_INFINITY);
        assert_eq!(<f16 as Element>::from_f64(1e-300), f16::ZERO);
        assert!(<f16 as Element>::from_f64(f64::NAN).is_nan());
        assert_eq!(<f16 as Element>::from_f64(f64::INFINITY), f16::INFINITY);
    }
}
