//! The steps of a contraction.

use std::fmt;

use einsparse_kernels::abi::Zeros;

use crate::cost::Cost;
use crate::einsum::Einsum;
use crate::machine::Machine;

/// One launch and what it waits for.
pub(super) const LAUNCH_US: f64 = 3.0;

/// One contraction, of two terms, or of one whose own indices are summed.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What it computes, into a temporary or, last, into the output.
    pub einsum: Einsum,
    /// Multiplications and additions.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
    /// Predicted microseconds.
    pub us: f64,
    /// Whether elements of its result may have no term, as those of a product with a sparse factor.
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
            if let crate::einsum::Scalar::Name(name) = scalar
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
    /// `Dense` where a sparse factor is multiplied before the last step: rows of its result that own no entry are
    /// zeros, which a NaN or Inf of a later factor then meets.
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
