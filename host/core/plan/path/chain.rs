//! Chain of GPU plans: one per step, with intermediate results of the element type.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::NAME;
use super::step::{Path, Step};
use crate::error::{Error, Result};
use crate::launch::Turns;
use crate::offer::{AnyOut, Executable, Options, Run, Slot, Slots, Source, Weights};
use crate::plan::AnyPlan;
use crate::tensor::{AnyOperand, AnyTensor};

/// Operand of a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Input {
    /// An operand of the expression.
    Operand(Slot),
    /// The result of the step with this index.
    Step(usize),
}

impl Input {
    /// Returns the operands that a step reads by name, in the order of [`Step::names`].
    pub(super) fn of(step: &Step, source: &Source<'_, '_>) -> Result<Vec<Input>> {
        let of = |name: &str| match step.temporary(name) {
            Some(at) => Ok(Input::Step(at)),
            None => source.slot(name).map(Input::Operand),
        };
        step.names().into_iter().map(of).collect()
    }
}

/// Plans of the steps, and their intermediate results.
#[derive(Debug)]
pub(in crate::plan) struct Chain {
    /// Serializes runs, which share the intermediate results.
    turns: Option<Turns>,
    path: Path,
    steps: Vec<AnyPlan>,
    last: AnyPlan,
    /// Operands of each step, by slot.
    inputs: Vec<Vec<Input>>,
    temporaries: Mutex<Vec<AnyTensor>>,
}

impl Chain {
    pub(in crate::plan) fn new(source: &Source<'_, '_>, path: Path) -> Result<Self> {
        let (mut steps, mut inputs) = (Vec::new(), Vec::new());
        let mut temporaries = Vec::<AnyTensor>::new();
        // Steps read all values at each run, because `update_values` of this plan is not forwarded to them.
        let options =
            &Options { variant: None, weights: Weights::EachRun, ..source.options.clone() };
        for (at, step) in path.steps.iter().enumerate() {
            let mut of = Input::of(step, source)?;
            let mut names = step.names();
            let out = step.einsum.out.tensor.as_str();
            if let Ok(slot) = source.slot(out) {
                // A given output determines the row stride.
                of.push(Input::Operand(slot));
                names.push(out);
            }
            let operand = |(name, input): (_, &Input)| match *input {
                Input::Step(at) => Ok((name, AnyOperand::Dense(&temporaries[at]))),
                Input::Operand(_) => Ok((name, *source.operand(name)?)),
            };
            let bound = names.iter().copied().zip(&of).map(operand).collect::<Result<Vec<_>>>()?;
            let einsum = &step.einsum;
            let plan = AnyPlan::of(&Source { einsum, operands: &bound, options, ..*source })?;
            drop(bound);
            if at + 1 < path.steps.len() {
                let (shape, device) = (plan.out_shape(), source.context.device());
                let leading = shape.last().copied().unwrap_or(1);
                temporaries.push(AnyTensor::zeros(device, source.types.out, shape, leading)?);
            }
            steps.push(plan);
            inputs.push(of);
        }
        let Some(last) = steps.pop() else {
            return Err(Error::NoKernel { indirect: path.to_string(), tried: Vec::new() });
        };
        Ok(Chain {
            turns: source.context.on_gpu(|device| Turns::new(device))?,
            path,
            steps,
            last,
            inputs,
            temporaries: Mutex::new(temporaries),
        })
    }

    pub(super) fn queue(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        let mut all = self.temporaries.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, (plan, inputs)) in self.steps.iter().zip(&self.inputs).enumerate() {
            let (done, rest) = all.split_at_mut(at);
            if let Some(to) = rest.first_mut() {
                plan.run_slots(&bound(inputs, run, done), AnyOut::Dense(to), run.stream)?;
            }
        }
        match self.inputs.last() {
            Some(inputs) => {
                self.last.run_slots(&bound(inputs, run, &all), AnyOut::Dense(out), run.stream)
            }
            None => Ok(()),
        }
    }
}

/// Returns the operands of a step: operands of the expression and intermediate results.
fn bound<'b>(inputs: &[Input], run: &Run<'b>, temporaries: &'b [AnyTensor]) -> Slots<'b> {
    let of = |input: &Input| match *input {
        Input::Step(at) => temporaries.get(at).map(AnyOperand::Dense),
        Input::Operand(slot) => run.operand(slot).ok().copied(),
    };
    inputs.iter().map(of).collect()
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{NAME} of {} steps, zeros = {:?}", self.path.steps.len(), self.path.zeros)?;
        for (step, plan) in self.path.steps.iter().zip(&self.steps) {
            write!(f, "\n  {}: {plan}", step.einsum)?;
        }
        match self.path.steps.last() {
            Some(step) => write!(f, "\n  {}: {}", step.einsum, self.last),
            None => Ok(()),
        }
    }
}

impl Executable for Chain {
    fn variant(&self) -> &'static str {
        NAME
    }

    fn bytes(&self) -> usize {
        let all = self.temporaries.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = |t: &AnyTensor| t.shape().iter().product::<usize>() * t.dtype().bytes();
        let plans = self.steps.iter().map(AnyPlan::workspace_bytes);
        all.iter().map(bytes).sum::<usize>() + plans.sum::<usize>() + self.last.workspace_bytes()
    }

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.dense(out)?;
        run.queue(out)?;
        match &self.turns {
            Some(turns) => turns.queue(true, run.stream.raw(), || self.queue(run, out)),
            None => self.queue(run, out),
        }
    }
}
