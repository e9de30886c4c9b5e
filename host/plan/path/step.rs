//! The steps of a contraction.

use std::fmt;

use einsparse_kernels::abi::Zeros;

use crate::cost::Cost;
use crate::einsum::{Einsum, Scalar};
use crate::machine::Machine;

/// Time of a launch and of waiting for the launch before.
pub(super) const LAUNCH_US: f64 = 3.0;

/// A contraction of two terms, or the sum of one term over indices that no other term has.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The expression that it computes, into a temporary, or into the output if it is the last step.
    pub einsum: Einsum,
    /// Multiplications and additions.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
    /// Predicted microseconds.
    pub us: f64,
    /// Elements of its result.
    pub elements: f64,
    /// Whether there may be no term for some elements of its result, as for those of a product with a sparse factor.
    pub partial: bool,
    /// Temporaries among its factors, by name, and their numbers.
    pub(super) temporaries: Vec<(String, usize)>,
}

impl Step {
    /// Numbers of the temporaries that it reads.
    pub(super) fn reads(&self) -> impl Iterator<Item = usize> {
        self.temporaries.iter().map(|(_, number)| *number)
    }

    /// Number of the temporary of this name.
    pub(super) fn temporary(&self, name: &str) -> Option<usize> {
        let mut all = self.temporaries.iter();
        all.find(|(own, _)| own == name).map(|(_, number)| *number)
    }

    /// Every operand that it reads.
    pub(super) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for access in self.einsum.right() {
            if !names.contains(&access.tensor.as_str()) {
                names.push(&access.tensor);
            }
        }
        for scalar in &self.einsum.scalars {
            if let Scalar::Name(name) = scalar
                && !names.contains(&name.as_str())
            {
                names.push(name);
            }
        }
        names
    }
}

/// The steps of a contraction, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// The last one writes the output.
    pub steps: Vec<Step>,
    /// `Dense` on a GPU where a sparse factor is multiplied before the last step: its result has zeros where there is no
    /// entry, and a NaN or Inf of a later factor is multiplied by them.
    pub zeros: Zeros,
}

impl Path {
    /// Predicted microseconds of all steps.
    pub fn us(&self) -> f64 {
        self.steps.iter().map(|step| step.us).sum()
    }

    pub(in crate::plan) fn cost(&self) -> Cost {
        let bytes: f64 = self.steps.iter().map(|step| step.bytes).sum();
        Cost {
            us: self.us(),
            hbm_us: bytes / Machine::H200.hbm * 1e6,
            gather_us: 0.0,
            compute_us: self.us() - LAUNCH_US * self.steps.len() as f64,
            latency_us: LAUNCH_US * self.steps.len() as f64,
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.steps.iter().enumerate() {
            let between = if at == 0 { "" } else { "; " };
            write!(f, "{between}{}", step.einsum)?;
        }
        write!(f, " ({:.1} us, zeros = {:?})", self.us(), self.zeros)
    }
}
