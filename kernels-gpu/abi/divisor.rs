//! Division by numbers that the host determines before the launch.

/// Divisor with a precomputed reciprocal, which replaces the division by a multiplication and a correction.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divisor {
    /// The divisor, at least 1.
    pub value: u32,
    reciprocal: u32,
}

impl Divisor {
    /// Divisor of this value; 0 divides like 1.
    pub const fn new(value: u32) -> Self {
        let value = if value == 0 { 1 } else { value };
        let reciprocal = (1u64 << 32) / value as u64;
        Divisor {
            value,
            reciprocal: if reciprocal > u32::MAX as u64 { u32::MAX } else { reciprocal as u32 },
        }
    }

    /// Returns quotient and remainder. The estimated quotient is too small by less than 1 + n / 2^32: by at most one.
    #[inline(always)]
    pub const fn of(self, n: u32) -> (u32, u32) {
        let quotient = ((n as u64 * self.reciprocal as u64) >> 32) as u32;
        let rest = n.wrapping_sub(quotient.wrapping_mul(self.value));
        if rest >= self.value {
            (quotient.wrapping_add(1), rest.wrapping_sub(self.value))
        } else {
            (quotient, rest)
        }
    }
}

impl Default for Divisor {
    fn default() -> Self {
        Divisor::new(1)
    }
}
