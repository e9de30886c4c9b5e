//! What a CPU context checks as a GPU does: operators of a GPU that is not there. Shapes, strides, alignment, types and
//! formats are so looked at in one place, and refused with the same words.

use std::sync::Arc;

use super::Context;
use crate::device::{Device, Stream};
use crate::error::Result;

/// A launch of a GPU, or on the CPU of one that is not there: its runs look at operands as those of a GPU do, and queue
/// nothing.
#[derive(Debug)]
pub(crate) struct Prepared<L> {
    launch: L,
    runs: bool,
}

impl<L> Prepared<L> {
    /// The launch where it runs; `None` on the CPU.
    pub(crate) fn as_ref(&self) -> Option<&L> {
        self.runs.then_some(&self.launch)
    }

    /// Whether a GPU computes what is queued; if not, the host does.
    pub(crate) fn runs(&self) -> bool {
        self.runs
    }
}

impl<L> std::ops::Deref for Prepared<L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.launch
    }
}

/// On a CPU context the same operator of a GPU that is not there, which is made and run ahead of that of the CPU:
/// it refuses what a GPU refuses, and computes nothing.
#[derive(Debug)]
pub(crate) struct Shadow<O>(Option<Box<O>>);

impl<O> Shadow<O> {
    /// Made by `make` of a context of a GPU that is not there; nothing where the context is a GPU.
    pub(crate) fn new(context: &Context, make: impl FnOnce(&Context) -> Result<O>) -> Result<Self> {
        Ok(Shadow(match context.device() {
            Some(_) => None,
            None => Some(Box::new(make(&Context::of(Device::absent()))?)),
        }))
    }

    /// Made by `make` of what it depends on, where that has a shadow.
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

    /// The same of what runs do not change.
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
    /// What is made for the GPU, or on the CPU for one that is not there: both refuse the same.
    pub(crate) fn prepared<L>(
        &self,
        make: impl FnOnce(&Arc<Device>) -> Result<L>,
    ) -> Result<Prepared<L>> {
        let device = self.device().unwrap_or_else(|| Device::absent());
        Ok(Prepared {
            launch: make(device)?,
            runs: self.is_cuda(),
        })
    }
}
