//! 8-bit floats of the OCP FP8 specification (revision 1.0): e4m3 and e5m2.

use std::fmt;

use bytemuck::{Pod, Zeroable};

use crate::Element;

/// Parameters that differ between e4m3 and e5m2.
struct Layout {
    /// Bits of the mantissa.
    mantissa: u32,
    /// Exponent bias.
    bias: i32,
    /// Code of the largest finite number.
    largest: u8,
}

const SIGN: u8 = 0x80;
const NAN: u8 = 0x7f;

impl Layout {
    /// Nearest code, ties to even. Magnitudes beyond the largest finite number, including infinity, become that number,
    /// as in PTX's `cvt.rn.satfinite`.
    fn encode(&self, v: f64) -> u8 {
        let sign = if v.is_sign_negative() { SIGN } else { 0 };
        if v.is_nan() {
            return sign | NAN;
        }
        let v = v.abs();
        if v >= self.decode(self.largest) {
            return sign | self.largest;
        }
        let exponent = (v.to_bits() >> 52) as i32 - 1023;
        let exponent = exponent.max(1 - self.bias);
        // The unit in the last place is a power of two, so the quotient is exact.
        let units = v / f64::powi(2.0, exponent - self.mantissa as i32);
        // A carry out of the mantissa increments the exponent.
        let code = ((exponent + self.bias - 1) << self.mantissa) + units.round_ties_even() as i32;
        sign | code as u8
    }

    /// Value of a finite code.
    fn decode(&self, code: u8) -> f64 {
        let magnitude = i32::from(code & !SIGN);
        let (exponent, fraction) =
            (magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1));
        let units = if exponent == 0 { fraction } else { fraction + (1 << self.mantissa) };
        let unit = exponent.max(1) - self.bias - self.mantissa as i32;
        let v = f64::from(units) * f64::powi(2.0, unit);
        if code & SIGN == 0 { v } else { -v }
    }
}

macro_rules! fp8 {
    ($(#[$doc:meta])* $name:ident $text:literal $layout:expr, one $one:literal, infinity $infinity:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            const LAYOUT: Layout = $layout;
            /// Largest finite number.
            pub const MAX: Self = Self(Self::LAYOUT.largest);

            /// Number with this code.
            pub const fn from_bits(code: u8) -> Self {
                Self(code)
            }

            /// Code of the number.
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// Whether the code is NaN.
            pub fn is_nan(self) -> bool {
                Element::to_f64(self).is_nan()
            }
        }

        impl Element for $name {
            type Acc = f32;
            const NAME: &'static str = $text;
            const ZERO: Self = Self(0);
            const ONE: Self = Self($one);
            fn to_acc(self) -> f32 {
                self.to_f64() as f32
            }
            fn from_acc(a: f32) -> Self {
                Self::from_f64(f64::from(a))
            }
            fn to_f64(self) -> f64 {
                let magnitude = self.0 & !SIGN;
                match $infinity {
                    _ if magnitude <= Self::LAYOUT.largest => Self::LAYOUT.decode(self.0),
                    Some(code) if code == self.0 => f64::INFINITY,
                    Some(code) if code == magnitude => f64::NEG_INFINITY,
                    _ => f64::NAN,
                }
            }
            fn from_f64(v: f64) -> Self {
                Self(Self::LAYOUT.encode(v))
            }
        }

        /// Compares as numbers: NaN equals nothing, and -0 equals 0.
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.to_f64() == other.to_f64()
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                self.to_f64().partial_cmp(&other.to_f64())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_acc(), f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.to_acc(), f)
            }
        }
    };
}

fp8! {
    /// fp8 with 4 exponent bits and 3 mantissa bits: up to 448, subnormals from 2^-9, NaN, without infinity.
    /// Conversions round to nearest even and saturate.
    ///
    /// ```
    /// use einsparse_formats::{E4m3, Element};
    /// assert_eq!(E4m3::from_f64(0.3).to_f64(), 0.3125);
    /// assert_eq!(E4m3::from_f64(1e9), E4m3::MAX);
    /// assert_eq!(E4m3::MAX.to_f64(), 448.0);
    /// ```
    E4m3 "e4m3" Layout { mantissa: 3, bias: 7, largest: 0x7e }, one 0x38, infinity None::<u8>
}

fp8! {
    /// fp8 with 5 exponent bits and 2 mantissa bits: up to 57344, subnormals from 2^-16, infinities and NaN.
    /// Conversions round to nearest even and saturate, so they never return infinity.
    ///
    /// ```
    /// use einsparse_formats::{E5m2, Element};
    /// assert_eq!(E5m2::from_f64(0.3).to_f64(), 0.3125);
    /// assert_eq!(E5m2::from_f64(f64::INFINITY).to_f64(), 57344.0);
    /// ```
    E5m2 "e5m2" Layout { mantissa: 2, bias: 15, largest: 0x7b }, one 0x3c, infinity Some(0x7cu8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every code converts to itself. Midpoints between neighbors round to the even code, all other numbers to the
    /// nearest.
    fn all_codes<T: Element>(bits: fn(T) -> u8, code: fn(u8) -> T, largest: u8) {
        for sign in [0, SIGN] {
            for c in 0..=largest {
                let x = code(sign | c).to_f64();
                assert_eq!(bits(T::from_f64(x)), sign | c, "{x}");
                if c == largest {
                    continue;
                }
                let next = code(sign | (c + 1)).to_f64();
                let middle = (x + next) / 2.0;
                assert_eq!(bits(T::from_f64(middle)), sign | (c + c % 2), "{middle}");
                let inside = (next - x).abs() * 1e-9 * x.signum();
                assert_eq!(bits(T::from_f64(middle - inside)), sign | c);
                assert_eq!(bits(T::from_f64(middle + inside)), sign | (c + 1));
            }
        }
    }

    #[test]
    fn codes_round_to_nearest_even() {
        all_codes::<E4m3>(E4m3::to_bits, E4m3::from_bits, 0x7e);
        all_codes::<E5m2>(E5m2::to_bits, E5m2::from_bits, 0x7b);
    }

    #[test]
    fn special_codes_and_bounds() {
        assert!(E4m3::from_bits(0x7f).is_nan() && E4m3::from_bits(0xff).is_nan());
        let nan = |c: u8| E5m2::from_bits(c).is_nan();
        assert!((0x7d..=0x7f).all(nan) && (0xfd..=0xff).all(nan));
        assert_eq!(E5m2::from_bits(0x7c).to_f64(), f64::INFINITY);
        assert_eq!(E5m2::from_bits(0xfc).to_f64(), f64::NEG_INFINITY);
        assert_eq!(E4m3::from_f64(f64::NEG_INFINITY).to_f64(), -448.0);
        assert_eq!(E5m2::from_f64(-1e300).to_f64(), -57344.0);
        assert!(E4m3::from_f64(f64::NAN).is_nan() && E5m2::from_f64(f64::NAN).is_nan());
        assert_eq!(E4m3::from_bits(1).to_f64(), f64::powi(2.0, -9));
        assert_eq!(E5m2::from_bits(1).to_f64(), f64::powi(2.0, -16));
        assert_eq!((E4m3::ONE.to_f64(), E5m2::ONE.to_f64(), E4m3::ZERO.to_f64()), (1.0, 1.0, 0.0));
        assert_eq!(E4m3::from_f64(f64::powi(2.0, -11)), E4m3::ZERO);
        assert_eq!(E4m3::from_f64(-0.0).to_bits(), SIGN);
    }
}
