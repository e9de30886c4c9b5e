//! The kernel with the names of its operands, and a run of it.

use std::fmt;
use std::sync::Arc;

use einsparse_formats::AnyPattern;

use super::Bound;
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::families::tensor::tensor_product::{CouplingLaunch, RawCouplings};
use crate::plan::any::AnyPlan;
use crate::plan::bind::{device_tensor, elsewhere, find, scalar_value, wrong};
use crate::plan::family::{Compiled, write_kernel};
use crate::tensor::{AnyOperand, AnyTensor};

/// The kernel with the names of its operands.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) found: Arc<Bound>,
    pub(super) launch: CouplingLaunch,
}

impl Compiled for Made {
    fn variant(&self) -> &'static str {
        self.launch.row().name
    }

    fn bytes(&self) -> usize {
        self.launch.bytes()
    }

    fn run(
        &self,
        plan: &AnyPlan,
        operands: &[(&str, AnyOperand<'_>)],
        out: &mut AnyTensor,
        stream: &Stream,
    ) -> Result<()> {
        let queue = plan.check_places(operands, out, stream)?;
        let mut raw = RawCouplings {
            values: 0,
            operands: [(0, 0); 5],
            alpha: 1.0,
        };
        raw.values = match find(operands, &self.found.values)? {
            AnyOperand::Sparse(s) => {
                let arrays = s.device().ok_or_else(|| elsewhere(&self.found.values))?;
                self.check_pattern(s.pattern())?;
                arrays.values.address()
            }
            AnyOperand::Dense(d) if d.strides() != self.found.strides => {
                return Err(Error::Operand {
                    name: self.found.values.clone(),
                    reason: "has other distances between its rows than planned".into(),
                });
            }
            AnyOperand::Dense(d) => d.address().ok_or_else(|| elsewhere(&self.found.values))?,
            other => return Err(wrong(&self.found.values, "an uploaded tensor", other)),
        };
        for (to, name) in raw.operands.iter_mut().zip(&self.found.names) {
            if let Some(name) = name {
                *to = device_tensor(operands, name)?;
            }
        }
        raw.operands[4] = (
            out.address().ok_or_else(|| elsewhere("output"))?,
            out.leading(),
        );
        for factor in &self.found.scalars {
            raw.alpha *= scalar_value(operands, factor)?;
        }
        self.launch.run(&raw, queue)
    }
}

impl Made {
    /// Is this the pattern whose entries were looked up?
    fn check_pattern(&self, tensor: AnyPattern<'_>) -> Result<()> {
        let found = tensor.arrays();
        let planned = self
            .found
            .pattern
            .iter()
            .map(|(role, data)| (*role, &data[..]));
        if planned.eq(found.iter().map(|a| (a.role, a.data))) {
            return Ok(());
        }
        Err(Error::Operand {
            name: self.found.values.clone(),
            reason: "has not the pattern that was planned".into(),
        })
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_kernel(f, self.launch.row(), self.launch.describe())
    }
}
