//! Contraction steps on the CPU executor. Intermediate results have the accumulator type, f32 or f64, so they are not
//! rounded. Each is freed after the step that reads it.

use std::fmt;

use super::step::{Path, Step};
use crate::context::Context;
use crate::cpu::{AnyOperands, AnyOutput, is_partial, run_step};
use crate::einsum::{Extents, IndexExpr};
use crate::error::{Elsewhere, Error, Result};
use crate::indirect::{IndirectEinsum, rewrite, rewrite_dense};
use crate::offer::bind::find;
use crate::offer::{Compiled, Options, Run, Types};
use crate::plan::cpu::OnCpu;
use crate::plan::joined::{Asked, over_lists};
use crate::registry::Dtype;
use crate::tensor::{AnyOperand, AnyTensor, row_major};
use crate::values::{Buffer, sums_of};

/// Rewritten step, and the shape of its result.
#[derive(Debug)]
struct Written {
    indirect: IndirectEinsum,
    shape: Vec<usize>,
    /// Position lists of two sparse factors, and the names of their values in the step.
    lists: Vec<(String, Vec<u32>)>,
    values: Vec<(String, String)>,
}

/// Contraction path on the CPU.
#[derive(Debug)]
pub(in crate::plan) struct CpuChain {
    own: OnCpu,
    path: Path,
    steps: Vec<Written>,
    /// Type of accumulators and intermediate results.
    sums: Dtype,
}

/// Result of a step, stored until it is read.
struct Temporary {
    values: Buffer,
    partial: bool,
}

impl CpuChain {
    /// Prepares the steps. `filled`: names of dense factors whose zeros must not be multiplied.
    pub(in crate::plan) fn new(
        context: &Context,
        (path, filled): (Path, &[&str]),
        operands: &[(&str, AnyOperand<'_>)],
        extents: &Extents,
        types: Types,
    ) -> Result<Self> {
        let written = |step: &Step| {
            let format = |name: &str| Some(find(operands, name).ok()?.pattern()?.format());
            let factors = step.einsum.factors.iter();
            let sparse = factors.filter_map(|f| Some((&f.tensor, format(&f.tensor)?)));
            let (mut lists, mut values) = (Vec::new(), Vec::new());
            let mut indirect = match sparse.collect::<Vec<_>>().as_slice() {
                [] => rewrite_dense(&step.einsum)?,
                [(name, format)] => rewrite(&step.einsum, name, format)?,
                [..] => {
                    let joined = over_lists(&Asked {
                        types,
                        context,
                        einsum: &step.einsum,
                        operands,
                        options: &Options::default(),
                    })?;
                    (lists, values) = (joined.lists, joined.values);
                    joined.indirect
                }
            };
            let own = indirect.factors.iter().enumerate();
            let own = own.filter(|(_, access)| filled.contains(&access.tensor.as_str()));
            indirect.filled.extend(own.map(|(f, _)| f).collect::<Vec<_>>());
            let extent = |index: &IndexExpr| match index {
                IndexExpr::Name(name) => extents.get(name).unwrap_or(1),
                // Only the output has such indices, and its shape is given.
                IndexExpr::Access(_) | IndexExpr::Sum(_) => 1,
            };
            let shape = step.einsum.out.indices.iter().map(extent).collect();
            Ok(Written { indirect, shape, lists, values })
        };
        Ok(CpuChain {
            own: OnCpu::new(context, operands),
            steps: path.steps.iter().map(written).collect::<Result<_>>()?,
            sums: sums_of(types.operands, types.out),
            path,
        })
    }

    /// Returns the operands of a step: operands of the expression, intermediate results, and all index arrays.
    fn bound<'a>(
        &'a self,
        (step, written): (&'a Step, &'a Written),
        operands: &'a [(&str, AnyOperand<'a>)],
        temporaries: &'a [Option<Temporary>],
    ) -> Result<AnyOperands<'a>> {
        let mut bound = AnyOperands::default();
        self.own.bind_arrays(&mut bound)?;
        for (name, slots) in &written.lists {
            bound.index(name, &[slots.len()], slots)?;
        }
        for (operand, name) in &written.values {
            let of = (operand.as_str(), find(operands, operand)?);
            self.own.bind_values(&mut bound, name, of)?;
        }
        for name in step.names() {
            if written.values.iter().any(|(operand, _)| operand == name) {
                continue;
            }
            let own = step.temporary(name);
            match own.and_then(|at| Some((&self.steps[at].shape, temporaries[at].as_ref()?))) {
                Some((shape, temporary)) => {
                    bound.dense(name, shape, row_major(shape), temporary.values.view());
                    if temporary.partial {
                        bound.set_partial(name);
                    }
                }
                None => {
                    let of = (name, find(operands, name)?);
                    self.own.bind(&mut bound, &written.indirect, of)?;
                }
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

    fn steps(&self) -> Option<String> {
        Some(self.path.to_string())
    }

    fn run(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        run.factor()?;
        let mut temporaries: Vec<Option<Temporary>> = Vec::new();
        for (at, (step, written)) in self.path.steps.iter().zip(&self.steps).enumerate() {
            let (e, shape) = (&written.indirect, &written.shape);
            let bound = self.bound((step, written), run.operands, &temporaries)?;
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
