//! Plans that run on the CPU executor.

use std::fmt;

use einsparse_formats::AnyPattern;

use super::arrays::PlannedArrays;
use crate::context::Context;
use crate::cpu::{self, AnyOperands, AnyOutput};
use crate::error::{Elsewhere, Result};
use crate::indirect::IndirectEinsum;
use crate::offer::{AnyOut, Executable, PlannedPattern, Run, Slot, Source, wrong};
use crate::tensor::{AnyOperand, row_major};

#[derive(Debug)]
pub(super) struct OnCpu {
    arrays: PlannedArrays,
    /// Planned patterns of the sparse operands, by slot. A run with another pattern is refused, as on a GPU.
    patterns: Vec<Option<PlannedPattern>>,
    context: Context,
}

impl OnCpu {
    pub(super) fn new(source: &Source<'_, '_>) -> Self {
        let planned = |(name, operand): &(&str, AnyOperand<'_>)| {
            operand.pattern().map(|pattern| PlannedPattern::new(name, pattern))
        };
        OnCpu {
            arrays: PlannedArrays::of(source.operands),
            patterns: source.operands.iter().map(planned).collect(),
            context: source.context.clone(),
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
        (slot, name, operand): (Slot, &str, &AnyOperand<'a>),
    ) -> Result<()> {
        match operand {
            AnyOperand::Sparse(a) => {
                self.as_planned(slot, a.pattern())?;
                bound.sparse(of, a.pattern(), a.host().or_elsewhere(name)?)
            }
            AnyOperand::HostSparse(pattern, values) => {
                self.as_planned(slot, *pattern)?;
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
            AnyOperand::Shape(_) => Err(wrong(name, "a tensor", operand)),
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
        (slot, name, operand): (Slot, &str, &AnyOperand<'a>),
    ) -> Result<()> {
        let (pattern, all) = match operand {
            AnyOperand::Sparse(a) => (a.pattern(), a.host().or_elsewhere(name)?),
            AnyOperand::HostSparse(pattern, all) => (*pattern, *all),
            other => return Err(wrong(name, "a sparse tensor", other)),
        };
        self.as_planned(slot, pattern)?;
        bound.dense(values, &[pattern.slots()], vec![1], all);
        Ok(())
    }

    fn as_planned(&self, slot: Slot, pattern: AnyPattern<'_>) -> Result<()> {
        let own = slot.of(&self.patterns).and_then(Option::as_ref);
        own.map_or(Ok(()), |own| own.expect(own.name(), pattern))
    }
}

impl Executable for OnCpu {
    fn variant(&self) -> &'static str {
        "cpu"
    }

    fn bytes(&self) -> usize {
        0
    }

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.dense(out)?;
        run.factor()?;
        let mut bound = AnyOperands::default();
        self.arrays.bind(&mut bound)?;
        for own in run.named().filter(|(_, name, _)| *name != run.of.output()) {
            self.bind(&mut bound, &run.of.indirect, own)?;
        }
        let (shape, leading) = (out.shape().to_vec(), out.leading());
        let values = out.host_mut().or_elsewhere(run.of.output())?;
        let output = AnyOutput::new(&shape, leading, values)?;
        cpu::run_any(run.of.types.operands, &run.of.indirect, &bound, output)
    }
}

impl fmt::Display for OnCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cpu: parallel executor on {}", self.context)
    }
}
