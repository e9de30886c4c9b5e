//! Kernel with the names of its operands, and its run.

use std::sync::Arc;

use einsparse_formats::AnyPattern;

use super::Bound;
use crate::error::{Elsewhere, Error, Result};
use crate::families::tensor::tensor_product::{CouplingLaunch, RawCouplings};
use crate::offer::bind::{find, wrong};
use crate::offer::{Compiled, Run, of_launch};
use crate::tensor::{AnyOperand, AnyTensor};

/// Kernel with the names of its operands.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) found: Arc<Bound>,
    pub(super) launch: CouplingLaunch,
}

impl Compiled for Made {
    of_launch!();

    fn run(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        let queue = run.queue(out)?;
        let mut raw = RawCouplings { values: 0, operands: [(0, 0); 5], alpha: run.factor()? };
        raw.values = match find(run.operands, &self.found.values)? {
            AnyOperand::Sparse(s) => {
                let arrays = s.device().or_elsewhere(&self.found.values)?;
                self.check_pattern(s.pattern())?;
                arrays.values.address()
            }
            AnyOperand::Dense(d) if d.strides() != self.found.strides => {
                return Err(Error::operand(
                    &self.found.values,
                    "has other distances between its rows than planned",
                ));
            }
            AnyOperand::Dense(d) => d.address().or_elsewhere(&self.found.values)?,
            other => return Err(wrong(&self.found.values, "an uploaded tensor", other)),
        };
        for (to, name) in raw.operands.iter_mut().zip(&self.found.names) {
            if let Some(name) = name {
                *to = run.tensor(name)?;
            }
        }
        raw.operands[4] = run.output(out)?;
        self.launch.run(&raw, queue)
    }
}

impl Made {
    /// Validates that this pattern is the planned pattern.
    fn check_pattern(&self, tensor: AnyPattern<'_>) -> Result<()> {
        let found = tensor.arrays();
        let planned = self.found.pattern.iter().map(|(role, data)| (*role, &data[..]));
        if planned.eq(found.iter().map(|a| (a.role, a.data))) {
            return Ok(());
        }
        let found =
            format!("{} {:?} with {} slots", tensor.format(), tensor.shape(), tensor.slots());
        Err(Error::other_pattern(&self.found.values, "", found))
    }
}

of_launch!(Made);
