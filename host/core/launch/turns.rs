//! Order of runs that share device memory: each run waits for the end of the previous one, on any stream.

use std::sync::{Arc, Mutex, PoisonError};

use crate::context::Context;
use crate::device::{Device, Stream};
use crate::driver::{DeviceMemory, Event, PrimaryContext, RawStream, memset_d8_async};
use crate::error::Result;

/// Queues `launch` in workspace order. Without `turns`, on a CPU, it calls `launch` at once.
pub fn in_turn(
    turns: Option<Arc<Turns>>,
    stream: &Stream,
    launch: impl FnOnce() -> Result<()>,
) -> Result<()> {
    match turns {
        Some(turns) => turns.queue(true, stream.raw(), launch),
        None => launch(),
    }
}

/// Returns a workspace order for this context; `None` on a CPU.
pub fn shared_turns(context: &Context) -> Result<Option<Arc<Turns>>> {
    context.on_gpu(|device| Turns::new(device).map(Arc::new))
}

/// End of the last run, and counters that are zero before and after each run.
#[derive(Debug)]
pub struct Turns {
    last: Mutex<Last>,
    counters: DeviceMemory,
    /// Must outlive the event: fields are dropped in this order.
    context: Arc<PrimaryContext>,
}

#[derive(Debug)]
struct Last {
    end: Event,
    /// Number of the stream of the run, if it is known. Runs on one stream are already in order.
    stream: Option<u64>,
    counters: Counters,
}

/// Whether the counters may be nonzero.
///
/// The thread block that arrives last resets its counter. A queued launch runs to its end, or CUDA destroys the context
/// with its memory. A run of several launches can stop between two of them if the driver refuses the second one. The
/// next run then clears the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counters {
    stale: bool,
}

impl Counters {
    /// Returns whether the next run must clear the counters. A captured run clears them when its graph is launched. The
    /// graph may never be launched, so the counters stay stale for other runs.
    fn clear(&mut self, captured: bool) -> bool {
        let stale = self.stale;
        self.stale &= captured;
        stale
    }

    fn after(&mut self, run: &Result<()>) {
        self.stale |= run.is_err();
    }
}

impl Turns {
    pub fn new(device: &Device) -> Result<Self> {
        Self::with_counters(device, 0)
    }

    /// Allocates `bytes` bytes of counters.
    pub(crate) fn with_counters(device: &Device, bytes: usize) -> Result<Self> {
        let context = Arc::clone(device.context());
        context.set_current()?;
        let counters = match bytes {
            0 => DeviceMemory::alloc(&context, 0)?,
            bytes => device.zeros(bytes)?,
        };
        Ok(Turns {
            last: Mutex::new(Last {
                end: Event::of(&context)?,
                stream: None,
                counters: Counters::default(),
            }),
            counters,
            context,
        })
    }

    pub(crate) fn counters(&self) -> &DeviceMemory {
        &self.counters
    }

    /// Queues a run with `launch`, after the previous run if they share memory.
    pub fn queue(
        &self,
        shared: bool,
        stream: RawStream<'_>,
        launch: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if !shared {
            return launch();
        }
        self.context.set_current()?;
        // A graph has its own order. The caller orders captured runs and other runs that share memory.
        let captured = stream.is_capturing()?;
        // Locked during the launch, so that no other run is queued between this run and its event.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if !captured && (stream.number().is_none() || stream.number() != last.stream) {
            stream.wait(&last.end)?;
        }
        let cleared = match last.counters.clear(captured) {
            true => self.clear(stream),
            false => Ok(()),
        };
        let launched = cleared.and_then(|()| launch());
        last.counters.after(&launched);
        if captured {
            return launched;
        }
        // Recorded after a failure too, because part of the run may be queued.
        let recorded = last.end.record(stream);
        last.stream = recorded.as_ref().ok().and_then(|()| stream.number());
        launched.and(recorded)
    }

    fn clear(&self, stream: RawStream<'_>) -> Result<()> {
        let (address, bytes) = (self.counters.address(), self.counters.bytes());
        // SAFETY: the range is the whole allocation, which the driver frees only after the queued work.
        unsafe { memset_d8_async(address, 0, bytes, stream) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn counters_are_cleared_once_after_a_run_that_failed() {
        let mut counters = Counters::default();
        counters.after(&Ok(()));
        assert!(!counters.clear(false), "nothing failed");
        counters.after(&Err(Error::operand("A", "is not what was planned")));
        assert!(counters.clear(false));
        assert!(!counters.clear(false), "cleared twice");
    }

    #[test]
    fn a_graph_that_may_never_run_clears_for_itself_alone() {
        let mut counters = Counters { stale: true };
        assert!(counters.clear(true), "the graph clears");
        assert!(counters.clear(false), "and so does the next run");
        assert_eq!(counters, Counters::default());
    }

    #[test]
    fn a_clearing_that_fails_is_repeated() {
        let mut counters = Counters { stale: true };
        assert!(counters.clear(false));
        counters.after(&Err(Error::operand("A", "is not what was planned")));
        assert!(counters.clear(false));
    }
}
