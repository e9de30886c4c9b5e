//! Checks of a CPU context for the kernels of a GPU, by operators of a GPU that is absent. Shapes, strides, alignment, types and
//! formats are checked in one place, and refused with the same words.

use std::sync::Arc;

use super::Context;
use crate::device::{Device, Stream};
use crate::error::Result;

/// A launch of a GPU, or on the CPU of a GPU that is absent: its runs check operands and queue nothing.
#[derive(Debug)]
pub(crate) struct Prepared<L> {
    /// `None` in a context without checks.
    launch: Option<L>,
    runs: bool,
}

impl<L> Prepared<L> {
    /// The launch where it runs; `None` on the CPU.
    pub(crate) fn as_ref(&self) -> Option<&L> {
        self.launch.as_ref().filter(|_| self.runs)
    }

    /// The launch that checks operands, and that computes on a GPU. `None` in a context without checks.
    pub(crate) fn get(&self) -> Option<&L> {
        self.launch.as_ref()
    }

    /// Passes the launch to `queue`, which checks operands, and on a GPU queues the work. Returns whether a GPU computes
    /// it; if not, the host does.
    pub(crate) fn queue(&self, queue: impl FnOnce(&L) -> Result<()>) -> Result<bool> {
        self.launch.as_ref().map_or(Ok(()), queue)?;
        Ok(self.runs)
    }
}

/// On a CPU context the same operator of a GPU that is not there, which is made and run ahead of that of the CPU:
/// it refuses what a GPU refuses, and computes nothing.
#[derive(Debug)]
pub(crate) struct Shadow<O>(Option<Box<O>>);

impl<O> Shadow<O> {
    /// Creates the operator with `make` on the model of a GPU, if the context is a CPU that checks; otherwise none.
    pub(crate) fn new(context: &Context, make: impl FnOnce(&Context) -> Result<O>) -> Result<Self> {
        Ok(Shadow(match context.device() {
            None if context.checks() => Some(Box::new(make(&Context::of(context.planned_on()?))?)),
            _ => None,
        }))
    }

    /// Made by `make` from the shadow of another operator, if that has one.
    pub(crate) fn of<D>(of: Option<&D>, make: impl FnOnce(&D) -> Result<O>) -> Result<Self> {
        Ok(Shadow(of.map(make).transpose()?.map(Box::new)))
    }

    /// None.
    pub(crate) fn none() -> Self {
        Shadow(None)
    }

    /// The operator, on a CPU context.
    pub(crate) fn get(&self) -> Option<&O> {
        self.0.as_deref()
    }

    /// Runs it on a CPU context.
    pub(crate) fn run(
        &mut self,
        stream: &Stream,
        run: impl FnOnce(&mut O, &Stream) -> Result<()>,
    ) -> Result<()> {
        match &mut self.0 {
            Some(own) => run(own, stream.shadow()),
            None => Ok(()),
        }
    }

    /// Runs an operator that runs do not change.
    pub(crate) fn look(
        &self,
        stream: &Stream,
        run: impl FnOnce(&O, &Stream) -> Result<()>,
    ) -> Result<()> {
        match &self.0 {
            Some(own) => run(own, stream.shadow()),
            None => Ok(()),
        }
    }
}

impl Context {
    /// Makes a launch for the GPU, or on the CPU for a GPU that is absent: both return equal errors.
    pub(crate) fn prepared<L>(
        &self,
        make: impl FnOnce(&Arc<Device>) -> Result<L>,
    ) -> Result<Prepared<L>> {
        Ok(Prepared {
            launch: match self.checks() {
                true => Some(make(self.planned_on()?)?),
                false => None,
            },
            runs: self.is_cuda(),
        })
    }
}
