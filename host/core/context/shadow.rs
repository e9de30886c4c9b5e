//! Checks of a CPU context for the kernels of a GPU, by operators of a simulated GPU. Shapes, strides, alignment, types
//! and formats are checked in one place, and refused with equal messages.

use std::sync::Arc;

use super::Context;
use crate::device::{Device, Stream};
use crate::error::Result;

/// A launch on a GPU. On the CPU it is a launch on the simulated GPU: its runs check operands and queue nothing.
#[derive(Debug)]
#[doc(hidden)]
pub struct Prepared<L> {
    /// `None` in a context without checks.
    launch: Option<L>,
    runs: bool,
}

impl<L> Prepared<L> {
    /// The launch on a GPU; `None` on the CPU.
    #[doc(hidden)]
    pub fn as_ref(&self) -> Option<&L> {
        self.launch.as_ref().filter(|_| self.runs)
    }

    /// The launch that checks operands and, on a GPU, computes. `None` in a context without checks.
    #[doc(hidden)]
    pub fn get(&self) -> Option<&L> {
        self.launch.as_ref()
    }

    /// Passes the launch to `queue`, which checks operands and, on a GPU, queues the work. Returns whether a GPU
    /// computes the result; otherwise the host does.
    #[doc(hidden)]
    pub fn queue(&self, queue: impl FnOnce(&L) -> Result<()>) -> Result<bool> {
        self.launch.as_ref().map_or(Ok(()), queue)?;
        Ok(self.runs)
    }
}

/// On a CPU context: the operator on the simulated GPU. It is created and run before the operator of the CPU. It
/// refuses what a GPU refuses, and computes nothing.
#[derive(Debug)]
#[doc(hidden)]
pub struct Shadow<O>(Option<Box<O>>);

impl<O> Shadow<O> {
    /// Creates the operator with `make` on the model of a GPU, if the context is a CPU that checks; otherwise an empty
    /// shadow.
    #[doc(hidden)]
    pub fn new(context: &Context, make: impl FnOnce(&Context) -> Result<O>) -> Result<Self> {
        Ok(Shadow(match context.device() {
            None if context.checks() => Some(Box::new(make(&Context::of(context.planned_on()?))?)),
            _ => None,
        }))
    }

    /// Creates the operator with `make` from the shadow of another operator; empty if `of` is `None`.
    pub(crate) fn of<D>(of: Option<&D>, make: impl FnOnce(&D) -> Result<O>) -> Result<Self> {
        Ok(Shadow(of.map(make).transpose()?.map(Box::new)))
    }

    /// An empty shadow.
    pub(crate) fn none() -> Self {
        Shadow(None)
    }

    /// The operator, on a CPU context.
    pub(crate) fn get(&self) -> Option<&O> {
        self.0.as_deref()
    }

    /// Runs the operator on a CPU context.
    #[doc(hidden)]
    pub fn run(
        &mut self,
        stream: &Stream,
        run: impl FnOnce(&mut O, &Stream) -> Result<()>,
    ) -> Result<()> {
        match &mut self.0 {
            Some(own) => run(own, stream.shadow()),
            None => Ok(()),
        }
    }

    /// Runs an operator that is not changed by runs.
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
    /// Makes a launch for the GPU, or on the CPU for the simulated GPU. Both return equal errors.
    #[doc(hidden)]
    pub fn prepared<L>(&self, make: impl FnOnce(&Arc<Device>) -> Result<L>) -> Result<Prepared<L>> {
        Ok(Prepared {
            launch: match self.checks() {
                true => Some(make(self.planned_on()?)?),
                false => None,
            },
            runs: self.is_cuda(),
        })
    }
}
