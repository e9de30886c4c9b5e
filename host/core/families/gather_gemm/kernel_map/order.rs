//! Order of the rebuilds of a kernel map and of the launches that read it, on any stream.

use std::sync::Arc;

use crate::device::Device;
use crate::driver::{Event, OwnedStream, PrimaryContext, RawStream};
use crate::error::{Error, Result};

/// Order of a map and its transposed map.
#[derive(Debug, Default)]
pub(crate) struct Order {
    is_rebuilt: bool,
    /// Whether a CUDA graph captured work that is valid only for the current pairs.
    is_held: bool,
    /// Whether a CUDA graph captured a rebuild without the transposed map.
    is_alone: bool,
    /// Set by the first rebuild that is not captured.
    ends: Option<Ends>,
}

#[derive(Debug)]
struct Ends {
    /// End of the last rebuild.
    rebuilt: Event,
    /// End of a run. `runs` waits for every run, so a rebuild waits once for all of them.
    run: Event,
    runs: OwnedStream,
    /// Dropped after the events and the stream.
    context: Arc<PrimaryContext>,
}

impl Order {
    /// Returns whether the arrays may differ from those that the map was created with, now or when a graph is replayed.
    pub(crate) fn is_rebuilt(&self) -> bool {
        self.is_rebuilt
    }

    /// Records that the arrays in host memory were rebuilt.
    pub(super) fn set_rebuilt(&mut self) {
        self.is_rebuilt = true;
    }

    /// Queues launches that read the arrays, after the last rebuild. In a graph, the captured order applies.
    pub(crate) fn read(
        &self,
        stream: RawStream<'_>,
        launch: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let Some(ends) = &self.ends else {
            return launch();
        };
        // A stream without its own context belongs to the current context.
        ends.context.set_current()?;
        if stream.is_capturing()? {
            return launch();
        }
        stream.wait(&ends.rebuilt)?;
        let launched = launch();
        // Recorded even after an error, because part of the work may be queued.
        ends.run.record(stream)?;
        ends.runs.raw().wait(&ends.run)?;
        launched
    }

    /// Marks the next launches on this stream as valid only for the current pairs. If a graph captures them, the map
    /// cannot be rebuilt.
    pub(crate) fn hold(&mut self, stream: RawStream<'_>) -> Result<()> {
        self.is_held |= stream.is_capturing()?;
        Ok(())
    }

    /// Validates that the map may be rebuilt.
    ///
    /// # Errors
    /// [`Error::Capture`] if a graph requires the current pairs of the map.
    pub(super) fn may_rebuild(&self) -> Result<()> {
        if !self.is_held {
            return Ok(());
        }
        let reason = "has a gradient of weights in a CUDA graph that was dealt for its pairs: rebuild a map once before \
                      such a gradient is captured";
        Err(Error::capture("map", reason))
    }

    /// Validates that the map may be transposed.
    ///
    /// # Errors
    /// [`Error::Capture`] if a graph rebuilds the map without a transposed map.
    pub(super) fn may_transpose(&self) -> Result<()> {
        if !self.is_alone {
            return Ok(());
        }
        let reason = "is rebuilt by a CUDA graph that was captured without a transposed map: create the transposed map before the capture";
        Err(Error::capture("map", reason))
    }

    /// Queues launches that write the arrays, after all launches that read them and after the last rebuild. `alone`:
    /// the transposed map does not exist.
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
                // Runs before the first rebuild recorded no events.
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
