//! Steps of a contraction.

use std::fmt;

use einsparse_kernels::abi::Zeros;

use crate::cost::Cost;
use crate::einsum::{Einsum, Scalar};
use crate::machine::Machine;

/// Microseconds of a launch, including the wait for the previous launch.
pub(super) const LAUNCH_US: f64 = 3.0;

/// Contraction of two terms, or the sum of one term over indices that only it has.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Expression of the step. The last step writes the output, earlier ones an intermediate result.
    pub einsum: Einsum,
    /// Number of multiplications and additions.
    pub flops: f64,
    /// Number of bytes read and written.
    pub bytes: f64,
    /// Predicted microseconds.
    pub us: f64,
    /// Number of elements of the result.
    pub elements: f64,
    /// Whether some elements of the result may be without a term, as in a product with a sparse factor.
    pub partial: bool,
    /// Names of the intermediate results among the factors, with the indices of their steps.
    pub(super) temporaries: Vec<(String, usize)>,
}

impl Step {
    /// Iterates over the indices of the steps whose results it reads.
    pub(super) fn reads(&self) -> impl Iterator<Item = usize> {
        self.temporaries.iter().map(|(_, number)| *number)
    }

    /// Returns the index of the step that computes the factor of this name; `None` for an operand.
    pub(super) fn temporary(&self, name: &str) -> Option<usize> {
        let mut all = self.temporaries.iter();
        all.find(|(own, _)| own == name).map(|(_, number)| *number)
    }

    /// Returns the names of all operands that it reads.
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

/// Steps of a contraction, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// The steps. The last one writes the output.
    pub steps: Vec<Step>,
    /// `Dense` on a GPU if a sparse factor is multiplied before the last step. The result of that step has implicit
    /// zeros, which are multiplied by a NaN or Inf of a later factor.
    pub zeros: Zeros,
}

impl Path {
    /// Returns the predicted microseconds of all steps.
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
