//! Bounds of the difference between a result and the exact sum.

use std::fmt::Debug;

use einsparse::registry::{Dtype, Scalar};

/// `|err| <= output |c| + (4 accumulator sqrt(K) + operand) sum |a||b| + floor`, in units of roundoff.
#[derive(Clone, Copy)]
pub struct Bound {
    output: f64,
    accumulator: f64,
    /// Rounding of the operands: TF32 keeps ten bits of mantissa of both.
    operand: f64,
    /// Half the spacing of subnormal outputs.
    floor: f64,
}

impl Bound {
    pub fn of(dtype: Dtype) -> Bound {
        let bits = |b: i32| f64::powi(2.0, -b);
        let (output, floor) = match dtype {
            Dtype::F64 => (bits(53), bits(1075)),
            Dtype::F32 | Dtype::Tf32 => (bits(24), bits(150)),
            Dtype::F16 => (bits(11), bits(25)),
            Dtype::Bf16 => (bits(8), bits(134)),
            Dtype::E4m3 => (bits(4), bits(10)),
            Dtype::E5m2 => (bits(3), bits(17)),
            // Exact.
            Dtype::Int8 | Dtype::Int32 => (0.0, 0.0),
        };
        let accumulator = match dtype {
            Dtype::F64 => bits(53),
            Dtype::Int8 | Dtype::Int32 => 0.0,
            Dtype::F32 | Dtype::Tf32 | Dtype::F16 | Dtype::Bf16 | Dtype::E4m3 | Dtype::E5m2 => {
                bits(24)
            }
        };
        let operand = if dtype == Dtype::Tf32 { 2.0 * bits(11) + bits(22) } else { 0.0 };
        Bound { output, accumulator, operand, floor }
    }

    pub fn at(&self, value: f64, magnitude: f64, terms: usize) -> f64 {
        let sum = 4.0 * self.accumulator * (terms as f64).sqrt() + self.operand;
        self.output * value.abs() + sum * magnitude + self.floor
    }
}

/// Checks that six runs give equal bits, and that each element is within rounding of the exact sum: of `exact`, whose
/// terms have magnitudes that add up to `size`.
pub fn alike_and_within<T: Scalar>(
    name: &str,
    [exact, size]: [&[f64]; 2],
    run: impl Fn() -> Vec<T>,
) {
    let (first, roundoff) = (run(), Bound::of(T::DTYPE).output);
    for (i, found) in first.iter().enumerate() {
        let bound = roundoff * exact[i].abs() + size[i] * 2f64.powi(-19) + 2f64.powi(-25);
        let error = (found.to_f64() - exact[i]).abs();
        assert!(error <= bound, "{name}: {found} for {}", exact[i]);
    }
    for _ in 0..5 {
        let bytes = |c: &[T]| bytemuck::cast_slice::<T, u8>(c).to_vec();
        assert!(bytes(&run()) == bytes(&first), "{name}");
    }
}

/// Checks that a gradient equals the slope of a loss, measured by differences of 1e-5.
pub fn near_slope(what: &str, found: f64, slope: f64) {
    let error = (slope - found).abs();
    assert!(error < 1e-5 * (1.0 + slope.abs()), "{what} = {found}, not {slope}");
}

/// Returns the distance of `found` from `wanted` in the 2-norm, relative to `wanted`.
pub fn relative_error(found: &[f64], wanted: &[f64]) -> f64 {
    let all: f64 = wanted.iter().map(|x| x * x).sum();
    let apart: f64 = found.iter().zip(wanted).map(|(x, y)| (x - y) * (x - y)).sum();
    (apart / all).sqrt()
}

/// Checks that values differ by at most `within * (1 + |wanted|)`. NaN equals NaN.
#[track_caller]
pub fn assert_near(what: &dyn Debug, found: &[f64], wanted: &[f64], within: f64) {
    assert_eq!(found.len(), wanted.len(), "{what:?}: length");
    for (at, (x, y)) in found.iter().zip(wanted).enumerate() {
        let near = x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= within * (1.0 + y.abs());
        assert!(near, "{what:?}: [{at}] is {x}, not {y}");
    }
}

/// Checks values of gelu: the error is within `roundoff`, relative, of the output.
pub fn assert_gelu<T: Scalar>(inputs: &[T], found: &[T], roundoff: f64) {
    for (x, found) in inputs.iter().map(|x| x.to_f64()).zip(found) {
        let exact = 0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt()));
        let error = (found.to_f64() - exact).abs();
        assert!(error <= roundoff * exact.abs() + 3e-7, "gelu({x}) = {found}, not {exact}");
    }
}
