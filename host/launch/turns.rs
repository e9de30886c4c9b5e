//! Runs of a plan share the workspace of what was cut, so each waits for the one before, on whatever stream.

use std::sync::{Mutex, PoisonError};

use crate::driver::{Event, RawStream};
use crate::error::Result;

/// The end of the last run.
#[derive(Debug)]
pub(crate) struct Turns(Mutex<Event>);

impl Turns {
    pub(crate) fn new() -> Result<Self> {
        Ok(Turns(Mutex::new(Event::for_order()?)))
    }

    /// Queues a run by `launch`, behind the last one if they share a workspace.
    pub(crate) fn queue(
        &self,
        shared: bool,
        stream: RawStream<'_>,
        launch: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        // A graph keeps its own order: what a captured run shares with others is the caller's to order.
        let shared = shared && !stream.is_capturing()?;
        // Held over the launch, so that no other run comes between it and its event.
        let done = shared.then(|| self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(done) = &done {
            stream.wait(done)?;
        }
        launch()?;
        done.map_or(Ok(()), |done| done.record(stream))
    }
}
