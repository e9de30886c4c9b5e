//! Gates of gated products.

use crate::cpu::{gelu, gelu_slope};
use crate::values::Sum;
use einsparse_kernels::abi::{FLAG_GELU, FLAG_RELU};

/// Gate of a gated linear unit, `gate(x G) * (x U)` (Shazeer, arXiv 2002.05202).
///
/// ```
/// use einsparse::dynamic::{Gate, GroupedOptions};
/// // The first product of experts as Qwen, Mixtral and DeepSeek have them.
/// let up = GroupedOptions { k: 2048, n: 768, gather: true, gate: Some(Gate::Silu), ..Default::default() };
/// assert_eq!(up.gate, Some(Gate::Silu));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `x / (1 + exp(-x))`: SwiGLU.
    Silu,
    /// `x P(X <= x)` of a normal distribution, with erf: GeGLU.
    Gelu,
    /// `max(x, 0)`: ReGLU.
    Relu,
}

impl Gate {
    /// Flags of the kernels for this gate.
    #[doc(hidden)]
    pub fn flags(self) -> u32 {
        match self {
            Gate::Silu => 0,
            Gate::Gelu => FLAG_GELU,
            Gate::Relu => FLAG_RELU,
        }
    }

    /// Value of the gate at `x`.
    #[doc(hidden)]
    pub fn of(self, x: f64) -> f64 {
        match self {
            Gate::Silu => x / (1.0 + (-x).exp()),
            Gate::Gelu => gelu(x),
            Gate::Relu if x < 0.0 => 0.0,
            Gate::Relu => x,
        }
    }

    /// Computes `gate(x) y` from sums `[x, y]`.
    #[doc(hidden)]
    pub fn multiply<A: Sum>(self, sums: &[A], to: &mut [A]) {
        let (gates, others) = sums.split_at(to.len());
        for ((to, &x), &y) in to.iter_mut().zip(gates).zip(others) {
            *to = A::from_f64(self.of(x.to_f64())) * y;
        }
    }

    /// Whether the gradient at `x` is 0 and must not be computed as a product: 0 times Inf would be NaN.
    #[doc(hidden)]
    pub fn masks(self, x: f64) -> bool {
        self == Gate::Relu && self.slope(x) == 0.0
    }

    /// Slope of the gate at `x`.
    #[doc(hidden)]
    pub fn slope(self, x: f64) -> f64 {
        match self {
            Gate::Silu => {
                let s = 1.0 / (1.0 + (-x).exp());
                s * (1.0 + x * (1.0 - s))
            }
            Gate::Gelu => gelu_slope(x),
            Gate::Relu => f64::from(u8::from(x > 0.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_those_of_the_values() {
        for gate in [Gate::Silu, Gate::Gelu, Gate::Relu] {
            for x in [-9.0, -1.3, -0.2, 0.4, 1.0, 7.5] {
                let found = (gate.of(x + 1e-6) - gate.of(x - 1e-6)) / 2e-6;
                let slope = gate.slope(x);
                assert!((found - slope).abs() < 1e-8, "{gate:?} at {x}: {found}, {slope}");
            }
        }
    }
}
