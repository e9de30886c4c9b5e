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
use crate::offer::{
    AnyOut, Executable, Options, PlannedPattern, PrepackedForm, Run, Slot, Source, Weights, with,
};
use crate::plan::AnyPlan;
use crate::tensor::{AnyOperand, AnySparseTensor, HostArrays};

#[derive(Debug)]
pub(super) struct Kept {
    /// Serializes runs, which share the copied values.
    turns: Turns,
    plan: Box<AnyPlan>,
    a: AnySparseTensor,
    slot: Slot,
    pattern: PlannedPattern,
    each_run: bool,
}

impl Kept {
    /// Copies A and plans over the copy, with a memory limit of `rest` bytes.
    pub(super) fn new(
        device: &Arc<Device>,
        limited: &Limited<'_, '_>,
        rest: usize,
    ) -> Result<Self> {
        let Limited { request, name, given, pattern, .. } = *limited;
        let options = request.options;
        let values = given.values;
        let a =
            AnySparseTensor::new(Some(device), pattern.shared(), (values.dtype(), Some(values)))?;
        let own = Options { memory_limit: Some(rest), ..options.clone() };
        let operand = |&(given, operand): &(_, _)| match given == name {
            true => (given, AnyOperand::Sparse(&a)),
            false => (given, operand),
        };
        let operands: Vec<_> = request.operands().iter().map(operand).collect();
        let source = Source { operands: &operands, options: &own, ..request.source() };
        let plan = AnyPlan::of(&source)?;
        Ok(Kept {
            turns: Turns::new(device)?,
            plan: Box::new(plan),
            slot: request.slot(name)?,
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
        given_in(&self.pattern, self.a.dtype(), run.operand(self.slot)?)
    }
}

impl Executable for Kept {
    fn variant(&self) -> &'static str {
        self.plan.variant()
    }

    fn bytes(&self) -> usize {
        let arrays = self.a.device().map_or(0, |d| d.columns.bytes() + d.values.bytes());
        let spans = self.a.spans().map_or(0, |spans| spans.bytes());
        arrays + spans + self.plan.workspace_bytes()
    }

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.dense(out)?;
        let arrays = self.given(run)?;
        let own = with(run.operands, self.slot, Some(AnyOperand::Sparse(&self.a)));
        let queue = run.with(&own).queue(out)?;
        let mut product = || self.plan.run_slots(&own, AnyOut::Dense(out), run.stream);
        if !self.each_run {
            return product();
        }
        self.turns.queue(true, queue.stream(), || {
            self.bring(arrays, queue)?;
            product()
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
        let own = with(run.operands, self.slot, Some(AnyOperand::Sparse(&self.a)));
        let queue = run.with(&own).queue_of_operands()?;
        self.turns.queue(true, queue.stream(), || {
            self.bring(arrays, queue)?;
            self.plan.update_slots(&own, run.stream)
        })
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = if self.each_run { "its values copied in each run" } else { "its values kept" };
        write!(f, "{}, A kept on the GPU, {when}", self.plan)
    }
}
