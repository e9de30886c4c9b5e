//! Element types of sparse and dense tensors, and the types in which sums are accumulated.

use std::fmt::{Debug, Display};
use std::ops::{Add, AddAssign, Mul, Neg, Sub};

use half::{bf16, f16};

/// Kernels interpret elements by their bytes, so only the types of this list are element types.
mod sealed {
    pub trait Sealed {}

    impl Sealed for f32 {}
    impl Sealed for f64 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
    impl Sealed for crate::E4m3 {}
    impl Sealed for crate::E5m2 {}
    impl Sealed for i8 {}
    impl Sealed for i32 {}
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

impl Accumulator for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    fn from_f64(v: f64) -> Self {
        v as f32
    }
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl Accumulator for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    fn from_f64(v: f64) -> Self {
        v
    }
    fn to_f64(self) -> f64 {
        self
    }
}

impl Element for f32 {
    type Acc = f32;
    const NAME: &'static str = "f32";
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    fn to_acc(self) -> f32 {
        self
    }
    fn from_acc(a: f32) -> Self {
        a
    }
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    fn from_f64(v: f64) -> Self {
        v as f32
    }
}

impl Element for f64 {
    type Acc = f64;
    const NAME: &'static str = "f64";
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    fn to_acc(self) -> f64 {
        self
    }
    fn from_acc(a: f64) -> Self {
        a
    }
    fn to_f64(self) -> f64 {
        self
    }
    fn from_f64(v: f64) -> Self {
        v
    }
}

macro_rules! half_element {
    ($t:ty, $name:literal) => {
        impl Element for $t {
            type Acc = f32;
            const NAME: &'static str = $name;
            const ZERO: Self = <$t>::ZERO;
            const ONE: Self = <$t>::ONE;
            fn to_acc(self) -> f32 {
                self.to_f32()
            }
            fn from_acc(a: f32) -> Self {
                <$t>::from_f32(a)
            }
            fn to_f64(self) -> f64 {
                <$t>::to_f64(self)
            }
            fn from_f64(v: f64) -> Self {
                <$t>::from_f32(round_to_odd(v))
            }
        }
    };
}

macro_rules! whole_element {
    ($t:ty, $name:literal) => {
        impl Element for $t {
            type Acc = f64;
            const NAME: &'static str = $name;
            const ZERO: Self = 0;
            const ONE: Self = 1;
            fn to_acc(self) -> f64 {
                f64::from(self)
            }
            fn from_acc(a: f64) -> Self {
                Self::from_f64(a)
            }
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            fn from_f64(v: f64) -> Self {
                // `as` saturates, and converts NaN to 0.
                v.round_ties_even() as $t
            }
        }
    };
}

whole_element!(i8, "int8");
whole_element!(i32, "int32");
half_element!(f16, "f16");
half_element!(bf16, "bf16");

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
