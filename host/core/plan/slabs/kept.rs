//! A with its arrays in device memory for the lifetime of the plan, if the memory limit permits. Each run copies the
//! values.

use std::fmt;
use std::sync::Arc;

use super::{Limited, given_in};
use crate::device::Device;
use crate::driver::copy_htod_async;
use crate::error::{Error, Result};
use crate::kernel::Queue;
use crate::launch::Turns;
use crate::offer::{Compiled, Options, PlannedPattern, PrepackedForm, Run, Weights};
use crate::plan::AnyPlan;
use crate::tensor::{AnyOperand, AnySparseTensor, AnyTensor, HostArrays};

#[derive(Debug)]
pub(super) struct Kept {
    /// Serializes runs, which share the copied values.
    turns: Turns,
    plan: Box<AnyPlan>,
    a: AnySparseTensor,
    pattern: PlannedPattern,
    each_run: bool,
}

impl Kept {
    /// Copies A and plans over the copy, with a memory limit of `rest` bytes.
    pub(super) fn new(device: &Arc<Device>, asked: &Limited<'_, '_>, rest: usize) -> Result<Self> {
        let Limited { question, name, given, pattern, .. } = *asked;
        let (options, operands) = (question.options, question.operands());
        let values = given.values;
        let a =
            AnySparseTensor::new(Some(device), pattern.shared(), (values.dtype(), Some(values)))?;
        let own = Options { memory_limit: Some(rest), ..options.clone() };
        let on = (question.context, question.types);
        let plan = AnyPlan::of(on, question.einsum.clone(), &swap(operands, name, &a), &own)?;
        Ok(Kept {
            turns: Turns::new(device)?,
            plan: Box::new(plan),
            pattern: PlannedPattern::new(name, pattern),
            a,
            each_run: options.weights == Weights::EachRun,
        })
    }

    pub(super) fn plan(&self) -> &AnyPlan {
        &self.plan
    }

    /// Queues the copy of the values. The caller has serialized it with other runs.
    fn bring(&self, arrays: HostArrays<'_>, queue: Queue<'_>) -> Result<()> {
        let stream = queue.stream();
        if !arrays.pinned && stream.is_capturing()? {
            return Err(Error::capture(self.pattern.name(), super::NOT_CAPTURED));
        }
        let to = self.a.values_address().unwrap_or(0);
        // SAFETY: the destination has the size of the values of its pattern. Pinned memory is freed only after its
        // readers have ended. Pageable memory has been read by the driver when the call returns.
        unsafe { copy_htod_async(to, arrays.values.bytes(), stream) }
    }

    fn given<'a>(&self, run: &Run<'a>) -> Result<HostArrays<'a>> {
        given_in(&self.pattern, self.a.dtype(), run.operands)
    }
}

/// Returns the operands with the copy instead of A.
fn swap<'o>(
    operands: &[(&'o str, AnyOperand<'o>)],
    name: &str,
    own: &'o AnySparseTensor,
) -> Vec<(&'o str, AnyOperand<'o>)> {
    let one = |(given, operand): &(&'o str, AnyOperand<'o>)| match *given == name {
        true => (*given, AnyOperand::Sparse(own)),
        false => (*given, *operand),
    };
    operands.iter().map(one).collect()
}

impl Compiled for Kept {
    fn variant(&self) -> &'static str {
        self.plan.variant()
    }

    fn bytes(&self) -> usize {
        let arrays = self.a.device().map_or(0, |d| d.columns.bytes() + d.values.bytes());
        let spans = self.a.spans().map_or(0, |spans| spans.bytes());
        arrays + spans + self.plan.workspace_bytes()
    }

    fn run(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        let arrays = self.given(run)?;
        let own = swap(run.operands, self.pattern.name(), &self.a);
        if !self.each_run {
            return self.plan.run(&own, out, run.stream);
        }
        let queue = run.of.check_places(&own, out, run.stream)?;
        self.turns.queue(true, queue.stream(), || {
            self.bring(arrays, queue)?;
            self.plan.run(&own, out, run.stream)
        })
    }

    fn prepacked(&self) -> Option<PrepackedForm> {
        self.plan.prepacked()
    }

    fn update_values(&self, run: &Run<'_>) -> Result<()> {
        if self.each_run {
            return Ok(());
        }
        let arrays = self.given(run)?;
        let own = swap(run.operands, self.pattern.name(), &self.a);
        let queue = run.of.check_stream(&own, run.stream)?;
        self.turns.queue(true, queue.stream(), || {
            self.bring(arrays, queue)?;
            self.plan.update_values(&own, run.stream)
        })
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = if self.each_run { "its values copied in each run" } else { "its values kept" };
        write!(f, "{}, A kept on the GPU, {when}", self.plan)
    }
}
