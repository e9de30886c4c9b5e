//! The steps of a contraction on the executor of the CPU. Temporaries have the type of its sums, f32 or f64, so that they
//! are not rounded, and are freed behind the step that reads them.

use std::fmt;

use super::step::{Path, Step};
use crate::context::Context;
use crate::cpu::{self, AnyOperands, AnyOutput, is_partial, run_step};
use crate::einsum::{Extents, IndexExpr};
use crate::error::{Elsewhere, Error, Result};
use crate::indirect::{IndirectEinsum, rewrite, rewrite_dense};
use crate::offer::bind::find;
use crate::offer::{Compiled, Run, Types};
use crate::plan::cpu::OnCpu;
use crate::registry::Dtype;
use crate::tensor::{AnyOperand, AnyTensor, row_major};
use crate::values::Buffer;

/// A step with its formats written in, and the shape of its result.
#[derive(Debug)]
struct Written {
    indirect: IndirectEinsum,
    shape: Vec<usize>,
}

/// A path of the CPU.
#[derive(Debug)]
pub(in crate::plan) struct CpuChain {
    own: OnCpu,
    path: Path,
    steps: Vec<Written>,
    /// Type of sums and temporaries.
    sums: Dtype,
}

/// The result of a step, until it is read.
struct Temporary {
    values: Buffer,
    partial: bool,
}

impl CpuChain {
    pub(in crate::plan) fn new(
        context: &Context,
        path: Path,
        operands: &[(&str, AnyOperand<'_>)],
        extents: &Extents,
        types: Types,
    ) -> Result<Self> {
        let written = |step: &Step| {
            let format = |name: &str| Some(find(operands, name).ok()?.pattern()?.format());
            let factors = step.einsum.factors.iter();
            let mut sparse = factors.filter_map(|f| Some((&f.tensor, format(&f.tensor)?)));
            let indirect = match sparse.next() {
                Some((name, format)) => rewrite(&step.einsum, name, &format)?,
                None => rewrite_dense(&step.einsum)?,
            };
            let extent = |index: &IndexExpr| match index {
                IndexExpr::Name(name) => extents.get(name).unwrap_or(1),
                IndexExpr::Access(_) | IndexExpr::Sum(_) => 1,
            };
            let shape = step.einsum.out.indices.iter().map(extent).collect();
            Ok(Written { indirect, shape })
        };
        Ok(CpuChain {
            own: OnCpu::new(context, operands),
            steps: path.steps.iter().map(written).collect::<Result<_>>()?,
            sums: cpu::sums_of(types.operands, types.out),
            path,
        })
    }

    /// The operands of a step: those of the expression that it names, and temporaries.
    fn bound<'a>(
        &'a self,
        (step, of): (&'a Step, &IndirectEinsum),
        operands: &'a [(&str, AnyOperand<'a>)],
        temporaries: &'a [Option<Temporary>],
    ) -> Result<AnyOperands<'a>> {
        let mut bound = AnyOperands::default();
        for name in step.names() {
            let own = step.temporary(name);
            match own.and_then(|at| Some((&self.steps[at].shape, temporaries[at].as_ref()?))) {
                Some((shape, temporary)) => {
                    bound.dense(name, shape, row_major(shape), temporary.values.view());
                    if temporary.partial {
                        bound.partial(name);
                    }
                }
                None => self.own.bind(&mut bound, of, (name, find(operands, name)?))?,
            }
        }
        Ok(bound)
    }

    fn temporary(&self, shape: &[usize]) -> Result<Buffer> {
        let elements = shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent));
        let elements = elements.ok_or_else(|| Error::Overflow {
            what: "elements of an intermediate result".into(),
            value: shape.iter().fold(1, |n: u128, &extent| n.saturating_mul(extent as u128)),
            limit: usize::MAX as u128,
        })?;
        Buffer::zeros(self.sums, elements)
    }
}

impl Compiled for CpuChain {
    fn variant(&self) -> &'static str {
        "cpu"
    }

    fn bytes(&self) -> usize {
        0
    }

    fn run(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        run.factor()?;
        let mut temporaries: Vec<Option<Temporary>> = Vec::new();
        for (at, (step, written)) in self.path.steps.iter().zip(&self.steps).enumerate() {
            let (e, shape) = (&written.indirect, &written.shape);
            let bound = self.bound((step, e), run.operands, &temporaries)?;
            if at + 1 == self.steps.len() {
                let (shape, leading) = (out.shape().to_vec(), out.leading());
                let values = out.host_mut().or_elsewhere(&run.of.einsum.out.tensor)?;
                let output = AnyOutput::new(&shape, leading, values)?;
                return run_step(self.sums, e, &bound, output, false);
            }
            let mut values = self.temporary(shape)?;
            let row = shape.last().copied().unwrap_or(1);
            let output = AnyOutput::new(shape, row, values.view_mut())?;
            run_step(self.sums, e, &bound, output, step.partial)?;
            drop(bound);
            for read in step.reads() {
                temporaries[read] = None;
            }
            let partial = step.partial && is_partial(values.view());
            temporaries.push(Some(Temporary { values, partial }));
        }
        Ok(())
    }
}

impl fmt::Display for CpuChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, pair by pair:", self.own)?;
        for step in &self.path.steps {
            write!(f, "\n  {}", step.einsum)?;
        }
        Ok(())
    }
}
