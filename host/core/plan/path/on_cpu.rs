//! Contraction steps on the CPU executor. Intermediate results have the accumulator type, f32 or f64, so they are not
//! rounded. Each is freed after the step that reads it.

use std::fmt;

use super::chain::Input;
use super::step::{Path, Step};
use crate::cpu::{AnyOperands, AnyOutput, is_partial, run_step};
use crate::einsum::{Extents, IndexExpr};
use crate::error::{Elsewhere, Error, Result};
use crate::indirect::{IndirectEinsum, rewrite, rewrite_dense};
use crate::offer::{AnyOut, Executable, Run, Source};
use crate::plan::cpu::OnCpu;
use crate::plan::joined::over_lists;
use crate::registry::Dtype;
use crate::tensor::row_major;
use crate::values::{Buffer, sums_of};

/// Rewritten step, and the shape of its result.
#[derive(Debug)]
struct Written {
    indirect: IndirectEinsum,
    shape: Vec<usize>,
    /// Position lists of two sparse factors, and the names of their values in the step.
    lists: Vec<(String, Vec<u32>)>,
    values: Vec<(String, String)>,
    /// Operands of the step, in the order of [`Step::names`].
    inputs: Vec<Input>,
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
        source: &Source<'_, '_>,
        (path, filled): (Path, &[&str]),
        extents: &Extents,
    ) -> Result<Self> {
        let written = |step: &Step| {
            let format = |name: &str| Some(source.operand(name).ok()?.pattern()?.format());
            let factors = step.einsum.factors.iter();
            let sparse = factors.filter_map(|f| Some((&f.tensor, format(&f.tensor)?)));
            let (mut lists, mut values) = (Vec::new(), Vec::new());
            let mut indirect = match sparse.collect::<Vec<_>>().as_slice() {
                [] => rewrite_dense(&step.einsum)?,
                [(name, format)] => rewrite(&step.einsum, name, format)?,
                [..] => {
                    let joined = over_lists(&Source { einsum: &step.einsum, ..*source })?;
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
            Ok(Written { indirect, shape, lists, values, inputs: Input::of(step, source)? })
        };
        Ok(CpuChain {
            own: OnCpu::new(source),
            steps: path.steps.iter().map(written).collect::<Result<_>>()?,
            sums: sums_of(source.types.operands, source.types.out),
            path,
        })
    }

    /// Returns the operands of a step: operands of the expression, intermediate results, and all index arrays.
    fn bound<'a>(
        &'a self,
        (step, written): (&'a Step, &'a Written),
        run: &Run<'a>,
        temporaries: &'a [Option<Temporary>],
    ) -> Result<AnyOperands<'a>> {
        let mut bound = AnyOperands::default();
        self.own.bind_arrays(&mut bound)?;
        for (name, slots) in &written.lists {
            bound.index(name, &[slots.len()], slots)?;
        }
        for (name, input) in step.names().into_iter().zip(&written.inputs) {
            match *input {
                Input::Step(at) => {
                    let Some(temporary) = &temporaries[at] else { continue };
                    let shape = &self.steps[at].shape;
                    bound.dense(name, shape, row_major(shape), temporary.values.view());
                    if temporary.partial {
                        bound.set_partial(name);
                    }
                }
                Input::Operand(slot) => {
                    let of = (slot, name, run.operand(slot)?);
                    match written.values.iter().find(|(operand, _)| operand == name) {
                        Some((_, values)) => self.own.bind_values(&mut bound, values, of)?,
                        None => self.own.bind(&mut bound, &written.indirect, of)?,
                    }
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

impl Executable for CpuChain {
    fn variant(&self) -> &'static str {
        "cpu"
    }

    fn bytes(&self) -> usize {
        0
    }

    fn steps(&self) -> Option<String> {
        Some(self.path.to_string())
    }

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.dense(out)?;
        run.factor()?;
        let mut temporaries: Vec<Option<Temporary>> = Vec::new();
        for (at, (step, written)) in self.path.steps.iter().zip(&self.steps).enumerate() {
            let (e, shape) = (&written.indirect, &written.shape);
            let bound = self.bound((step, written), run, &temporaries)?;
            if at + 1 == self.steps.len() {
                let (shape, leading) = (out.shape().to_vec(), out.leading());
                let values = out.host_mut().or_elsewhere(run.of.output())?;
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
