//! Kernel with the slots of its operands, and its run.

use std::sync::Arc;

use einsparse_formats::AnyPattern;

use super::Bound;
use crate::error::{Elsewhere, Error, Result};
use crate::families::tensor::tensor_product::{CouplingLaunch, RawCouplings};
use crate::offer::{AnyOut, Executable, Run, of_launch, wrong};
use crate::tensor::AnyOperand;

/// Kernel with the slots of its operands.
#[derive(Debug)]
pub(super) struct CouplingProduct {
    pub(super) found: Arc<Bound>,
    pub(super) launch: CouplingLaunch,
}

impl Executable for CouplingProduct {
    of_launch!();

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.dense(out)?;
        let queue = run.queue(out)?;
        let mut raw = RawCouplings { values: 0, operands: [(0, 0); 5], alpha: run.factor()? };
        let name = run.name(self.found.values);
        raw.values = match run.operand(self.found.values)? {
            AnyOperand::Sparse(s) => {
                let arrays = s.device().or_elsewhere(name)?;
                self.check_pattern(name, s.pattern())?;
                arrays.values.address()
            }
            AnyOperand::Dense(d) if d.strides() != self.found.strides => {
                let reason = "has other distances between its rows than planned";
                return Err(Error::operand(name, reason));
            }
            AnyOperand::Dense(d) => d.address().or_elsewhere(name)?,
            other => return Err(wrong(name, "an uploaded tensor", other)),
        };
        for (to, slot) in raw.operands.iter_mut().zip(self.found.slots) {
            if let Some(slot) = slot {
                *to = run.tensor(slot)?;
            }
        }
        raw.operands[4] = run.output(out)?;
        self.launch.run(&raw, queue)
    }
}

impl CouplingProduct {
    /// Validates that this pattern is the planned pattern.
    fn check_pattern(&self, name: &str, tensor: AnyPattern<'_>) -> Result<()> {
        let found = tensor.arrays();
        let planned = self.found.pattern.iter().map(|(role, data)| (*role, &data[..]));
        if planned.eq(found.iter().map(|a| (a.role, a.data))) {
            return Ok(());
        }
        let found =
            format!("{} {:?} with {} slots", tensor.format(), tensor.shape(), tensor.slots());
        Err(Error::other_pattern(name, "", found))
    }
}

of_launch!(CouplingProduct);
