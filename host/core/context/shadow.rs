//! Checks of a CPU context for the kernels of a GPU, by operators of a simulated GPU. Shapes, strides, alignment, types
//! and formats are checked in one place, and refused with equal messages.

use super::Context;
use crate::device::Stream;
use crate::error::Result;

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

    /// An empty shadow.
    pub(crate) fn none() -> Self {
        Shadow(None)
    }

    /// The operator, on a CPU context.
    pub(crate) fn get(&self) -> Option<&O> {
        self.0.as_deref()
    }

    /// Runs the operator on a CPU context.
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
