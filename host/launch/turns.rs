//! Device memory that runs share: whoever is queued waits for the last one, on whatever stream.

use std::sync::{Arc, Mutex, PoisonError};

use crate::context::Context;
use crate::device::{Device, Stream};
use crate::driver::{Event, PrimaryContext, RawStream};
use crate::error::Result;

/// Queues by `launch` in this turn; at once where there are none, on the CPU.
pub(crate) fn in_turn(
    turns: Option<Arc<Turns>>,
    stream: &Stream,
    launch: impl FnOnce() -> Result<()>,
) -> Result<()> {
    match turns {
        Some(turns) => turns.queue(true, stream.raw(), launch),
        None => launch(),
    }
}

/// Turns in this context; none on the CPU.
pub(crate) fn shared_turns(context: &Context) -> Result<Option<Arc<Turns>>> {
    context.on_gpu(|device| Turns::new(device).map(Arc::new))
}

/// The end of the last run.
#[derive(Debug)]
pub(crate) struct Turns {
    last: Mutex<Event>,
    /// Outlives the event: fields go in this order.
    context: Arc<PrimaryContext>,
}

impl Turns {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let context = Arc::clone(device.context());
        context.set_current()?;
        Ok(Turns {
            last: Mutex::new(Event::for_order()?),
            context,
        })
    }

    /// Queues a run by `launch`, behind the last one if they share memory.
    pub(crate) fn queue(
        &self,
        shared: bool,
        stream: RawStream<'_>,
        launch: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.context.set_current()?;
        // A graph keeps its own order: what a captured run shares with others is the caller's to order.
        if !shared || stream.is_capturing()? {
            return launch();
        }
        // Held over the launch, so that no other run comes between it and its event.
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        stream.wait(&last)?;
        let launched = launch();
        // Also behind what failed halfway.
        let recorded = last.record(stream);
        launched.and(recorded)
    }
}
