//! Element types of cases.

use std::fmt;

/// Element type of a case, named as in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Dtype {
    F32,
    F64,
    /// Stored as 32-bit floats; products are rounded to TF32.
    Tf32,
    F16,
    Bf16,
}

impl Dtype {
    pub const ALL: [Self; 5] = [Self::F32, Self::F64, Self::Tf32, Self::F16, Self::Bf16];

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 | Self::Tf32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Unit roundoff of the output and of the accumulator.
    pub fn roundoff(self) -> (f64, f64) {
        let half_ulp = |bits: i32| 0.5f64.powi(bits);
        match self {
            Self::F64 => (half_ulp(53), half_ulp(53)),
            Self::F32 | Self::Tf32 => (half_ulp(24), half_ulp(24)),
            Self::F16 => (half_ulp(11), half_ulp(24)),
            Self::Bf16 => (half_ulp(8), half_ulp(24)),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Tf32 => "tf32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}
