//! Plans that run on the CPU executor.

use std::fmt;

use einsparse_formats::AnyPattern;

use super::arrays::PlannedArrays;
use crate::context::Context;
use crate::cpu::{self, AnyOperands, AnyOutput};
use crate::error::{Elsewhere, Result};
use crate::indirect::IndirectEinsum;
use crate::offer::bind::wrong;
use crate::offer::{Compiled, PlannedPattern, Run};
use crate::tensor::{AnyOperand, AnyTensor, row_major};

#[derive(Debug)]
pub(super) struct OnCpu {
    arrays: PlannedArrays,
    /// Planned patterns. A run with another pattern is refused, as on a GPU.
    patterns: Vec<PlannedPattern>,
    context: Context,
}

impl OnCpu {
    pub(super) fn new(context: &Context, operands: &[(&str, AnyOperand<'_>)]) -> Self {
        let patterns = operands.iter().filter_map(|(name, operand)| match operand {
            AnyOperand::Sparse(a) => Some(PlannedPattern::new(name, a.pattern())),
            AnyOperand::HostSparse(pattern, _) => Some(PlannedPattern::new(name, *pattern)),
            _ => None,
        });
        OnCpu {
            arrays: PlannedArrays::of(operands),
            patterns: patterns.collect(),
            context: context.clone(),
        }
    }

    pub(super) fn bind_arrays<'a>(&'a self, bound: &mut AnyOperands<'a>) -> Result<()> {
        self.arrays.bind(bound)
    }

    /// Binds an operand of `of`, the expression of the plan or of one step.
    pub(super) fn bind<'a>(
        &self,
        bound: &mut AnyOperands<'a>,
        of: &IndirectEinsum,
        (name, operand): (&str, &AnyOperand<'a>),
    ) -> Result<()> {
        match operand {
            AnyOperand::Sparse(a) => {
                self.as_planned(name, a.pattern())?;
                bound.sparse(of, a.pattern(), a.host().or_elsewhere(name)?)
            }
            AnyOperand::HostSparse(pattern, values) => {
                self.as_planned(name, *pattern)?;
                bound.sparse(of, *pattern, *values)
            }
            AnyOperand::Dense(d) | AnyOperand::Dynamic(d, _) => {
                let values = d.host().or_elsewhere(name)?;
                bound.strided(name, d.shape(), &d.strides(), values)
            }
            AnyOperand::HostDense(shape, values) => {
                bound.dense(name, shape, row_major(shape), *values);
                Ok(())
            }
            // The index arrays of the plan are bound instead.
            AnyOperand::Index(..) => Ok(()),
            AnyOperand::Scalar(x) => {
                bound.scalar(name, *x);
                Ok(())
            }
        }
    }

    /// Binds the values of a sparse operand as a tensor of one axis.
    pub(super) fn bind_values<'a>(
        &self,
        bound: &mut AnyOperands<'a>,
        values: &str,
        (name, operand): (&str, &AnyOperand<'a>),
    ) -> Result<()> {
        let (pattern, all) = match operand {
            AnyOperand::Sparse(a) => (a.pattern(), a.host().or_elsewhere(name)?),
            AnyOperand::HostSparse(pattern, all) => (*pattern, *all),
            other => return Err(wrong(name, "a sparse tensor", other)),
        };
        self.as_planned(name, pattern)?;
        bound.dense(values, &[pattern.slots()], vec![1], all);
        Ok(())
    }

    fn as_planned(&self, name: &str, pattern: AnyPattern<'_>) -> Result<()> {
        let own = self.patterns.iter().find(|own| own.name() == name);
        own.map_or(Ok(()), |own| own.expect(name, pattern))
    }
}

impl Compiled for OnCpu {
    fn variant(&self) -> &'static str {
        "cpu"
    }

    fn bytes(&self) -> usize {
        0
    }

    fn run(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        run.factor()?;
        let mut bound = AnyOperands::default();
        self.arrays.bind(&mut bound)?;
        for (name, operand) in run.operands.iter().filter(|(n, _)| *n != run.of.einsum.out.tensor) {
            self.bind(&mut bound, &run.of.indirect, (name, operand))?;
        }
        let (shape, leading) = (out.shape().to_vec(), out.leading());
        let values = out.host_mut().or_elsewhere(&run.of.einsum.out.tensor)?;
        let output = AnyOutput::new(&shape, leading, values)?;
        cpu::run_any(run.of.types.operands, &run.of.indirect, &bound, output)
    }
}

impl fmt::Display for OnCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cpu: parallel executor on {}", self.context)
    }
}
