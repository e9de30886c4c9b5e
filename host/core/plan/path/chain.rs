//! Chain of GPU plans: one per step, with intermediate results of the element type.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::NAME;
use super::step::{Path, Step};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::launch::Turns;
use crate::offer::bind::find;
use crate::offer::{Compiled, Options, Run, Types, Weights};
use crate::plan::AnyPlan;
use crate::tensor::{AnyOperand, AnyTensor};

/// Plans of the steps, and their intermediate results.
#[derive(Debug)]
pub(in crate::plan) struct Chain {
    /// Serializes runs, which share the intermediate results.
    turns: Option<Turns>,
    path: Path,
    steps: Vec<AnyPlan>,
    last: AnyPlan,
    temporaries: Mutex<Vec<AnyTensor>>,
}

impl Chain {
    pub(in crate::plan) fn new(
        context: &Context,
        path: Path,
        (operands, options): (&[(&str, AnyOperand<'_>)], &Options),
        types: Types,
    ) -> Result<Self> {
        let (mut steps, mut temporaries) = (Vec::new(), Vec::<AnyTensor>::new());
        // Steps read all values at each run, because `update_values` of this plan is not forwarded to them.
        let options = Options { variant: None, weights: Weights::EachRun, ..options.clone() };
        let Some((last, before)) = path.steps.split_last() else {
            return Err(Error::NoKernel { indirect: path.to_string(), tried: Vec::new() });
        };
        for step in before {
            let bound = bound(step, operands, &temporaries)?;
            let plan = AnyPlan::of((context, types), step.einsum.clone(), &bound, &options)?;
            let shape = plan.out_shape();
            let leading = shape.last().copied().unwrap_or(1);
            let own = AnyTensor::zeros(context.device(), types.out, shape, leading)?;
            drop(bound);
            steps.push(plan);
            temporaries.push(own);
        }
        let bound = bound(last, operands, &temporaries)?;
        let last = AnyPlan::of((context, types), last.einsum.clone(), &bound, &options)?;
        drop(bound);
        Ok(Chain {
            turns: context.on_gpu(|device| Turns::new(device))?,
            path,
            steps,
            last,
            temporaries: Mutex::new(temporaries),
        })
    }

    pub(super) fn queue(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        out: &mut AnyTensor,
        stream: &Stream,
    ) -> Result<()> {
        let mut all = self.temporaries.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, (plan, step)) in self.steps.iter().zip(&self.path.steps).enumerate() {
            let (done, rest) = all.split_at_mut(at);
            let bound = bound(step, operands, done)?;
            if let Some(to) = rest.first_mut() {
                plan.run(&bound, to, stream)?;
            }
        }
        match self.path.steps.last() {
            Some(step) => self.last.run(&bound(step, operands, &all)?, out, stream),
            None => Ok(()),
        }
    }
}

/// Returns the operands of a step: operands of the expression and intermediate results.
fn bound<'b>(
    step: &'b Step,
    operands: &'b [(&str, AnyOperand<'b>)],
    temporaries: &'b [AnyTensor],
) -> Result<Vec<(&'b str, AnyOperand<'b>)>> {
    let of = |name: &'b str| match step.temporary(name).and_then(|at| temporaries.get(at)) {
        Some(tensor) => Ok((name, AnyOperand::Dense(tensor))),
        None => Ok((name, *find(operands, name)?)),
    };
    let given = operands.iter().map(|(name, _)| *name);
    let out = given.filter(|name| *name == step.einsum.out.tensor).take(1);
    let mut all = step.names().into_iter().map(of).collect::<Result<Vec<_>>>()?;
    for name in out {
        // A given output determines the row stride.
        all.push((name, *find(operands, name)?));
    }
    Ok(all)
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

impl Compiled for Chain {
    fn variant(&self) -> &'static str {
        NAME
    }

    fn bytes(&self) -> usize {
        let all = self.temporaries.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = |t: &AnyTensor| t.shape().iter().product::<usize>() * t.dtype().bytes();
        let plans = self.steps.iter().map(AnyPlan::workspace_bytes);
        all.iter().map(bytes).sum::<usize>() + plans.sum::<usize>() + self.last.workspace_bytes()
    }

    fn run(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        run.queue(out)?;
        match &self.turns {
            Some(turns) => {
                turns.queue(true, run.stream.raw(), || self.queue(run.operands, out, run.stream))
            }
            None => self.queue(run.operands, out, run.stream),
        }
    }
}
