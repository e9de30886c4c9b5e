//! The order of rebuilds of a kernel map and of what reads it, on any stream.

use std::sync::Arc;

use crate::device::Device;
use crate::driver::{Event, OwnedStream, PrimaryContext, RawStream};
use crate::error::{Error, Result};

/// Of a map and its transposed map.
#[derive(Debug, Default)]
pub(crate) struct Order {
    is_rebuilt: bool,
    /// A CUDA graph holds work that is right for the pairs of now alone.
    is_held: bool,
    /// A CUDA graph holds a rebuild of the first map alone.
    is_alone: bool,
    /// From the first rebuild on that is not captured.
    ends: Option<Ends>,
}

#[derive(Debug)]
struct Ends {
    /// The last rebuild's.
    rebuilt: Event,
    /// A run's: `runs` waits for all of them, so that one wait is for all.
    run: Event,
    runs: OwnedStream,
    /// Dropped behind them.
    context: Arc<PrimaryContext>,
}

impl Order {
    /// Whether the arrays may be others than those that the map was made with, now or when a graph is replayed.
    pub(crate) fn is_rebuilt(&self) -> bool {
        self.is_rebuilt
    }

    /// Arrays of the CPU were made again.
    pub(super) fn set_rebuilt(&mut self) {
        self.is_rebuilt = true;
    }

    /// Queues by `launch` what reads the arrays, behind the last rebuild. A graph keeps its own order.
    pub(crate) fn read(
        &self,
        stream: RawStream<'_>,
        launch: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let Some(ends) = &self.ends else {
            return launch();
        };
        // A stream without a context of its own is one of the current one.
        ends.context.set_current()?;
        if stream.is_capturing()? {
            return launch();
        }
        stream.wait(&ends.rebuilt)?;
        let launched = launch();
        // Also behind what failed halfway.
        ends.run.record(stream)?;
        ends.runs.raw().wait(&ends.run)?;
        launched
    }

    /// What is queued here next is right for the pairs of now alone: a graph that captures it holds the map to them.
    pub(crate) fn hold(&mut self, stream: RawStream<'_>) -> Result<()> {
        self.is_held |= stream.is_capturing()?;
        Ok(())
    }

    /// # Errors
    /// [`Error::Operand`] where a graph holds the map to its pairs.
    pub(super) fn may_rebuild(&self) -> Result<()> {
        if !self.is_held {
            return Ok(());
        }
        let reason = "has a gradient of weights in a CUDA graph that was dealt for its pairs: rebuild a map once before \
                      such a gradient is captured";
        Err(Error::operand("map", reason))
    }

    /// # Errors
    /// [`Error::Operand`] where a graph rebuilds the map without a transposed one.
    pub(super) fn may_transpose(&self) -> Result<()> {
        if !self.is_alone {
            return Ok(());
        }
        let reason = "is rebuilt by a CUDA graph that knows no transposed map: ask for it before the capture";
        Err(Error::operand("map", reason))
    }

    /// Queues by `launch` what writes the arrays, of the first map `alone` or of both: behind all that reads them, and
    /// the last rebuild.
    pub(super) fn rebuild(
        &mut self,
        (device, stream): (&Device, RawStream<'_>),
        alone: bool,
        launch: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.may_rebuild()?;
        device.context().set_current()?;
        let captured = stream.is_capturing()?;
        self.is_rebuilt = true;
        if captured {
            launch()?;
            self.is_alone |= alone;
            return Ok(());
        }
        let ends = match &self.ends {
            Some(ends) => ends,
            None => {
                // Nobody has told of the runs so far.
                device.synchronize()?;
                self.ends.insert(Ends {
                    rebuilt: Event::of(device.context())?,
                    run: Event::of(device.context())?,
                    runs: OwnedStream::of(device.context())?,
                    context: Arc::clone(device.context()),
                })
            }
        };
        ends.run.record(ends.runs.raw())?;
        stream.wait(&ends.run)?;
        stream.wait(&ends.rebuilt)?;
        let launched = launch();
        ends.rebuilt.record(stream)?;
        launched
    }
}
