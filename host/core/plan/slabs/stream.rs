//! Streaming on a GPU: a copy stream fills buffers during the products. Products alternate between the run's stream and
//! other streams. Events order copies and products.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::{NOT_CAPTURED, Predicted, Shown, given_in};
use crate::device::Device;
use crate::driver::{
    DeviceMemory, Event, OwnedStream, PinnedMemory, PrimaryContext, RawStream, copy_htod_async,
};
use crate::error::{Error, Result};
use crate::families::spmm::slabs::{LANES, SlabProduct};
use crate::kernel::Queue;
use crate::launch::{RawSpmm, Turns};
use crate::offer::{AnyOut, Executable, PlannedPattern, Run, SpmmSlots, with};
use crate::parallel;
use crate::tensor::HostArrays;

/// Bytes that one thread copies to pinned memory at a time.
const CHUNK: usize = 1 << 20;

/// Streaming plan. Fields are dropped in this order: events and streams before their context.
#[derive(Debug)]
pub(super) struct Streaming {
    /// Serializes runs, which share buffers, partial sums and `state`.
    turns: Turns,
    state: Mutex<State>,
    product: SlabProduct,
    buffers: Vec<DeviceMemory>,
    slots: SpmmSlots,
    pattern: PlannedPattern,
    shown: (Predicted, usize),
    device: Arc<Device>,
}

/// State that a run takes over from the previous run.
#[derive(Debug)]
struct State {
    live: Marks,
    /// Events of captured runs, which are not valid outside of a capture.
    captured: Marks,
    /// Index of the next buffer.
    next: usize,
    /// Whether a run was captured. Launches of its graph do not record the events of `live`.
    replays: bool,
    /// Chunks in pinned memory for the next copies, one per buffer; empty if A is pinned.
    staging: Vec<PinnedMemory>,
    copies: OwnedStream,
    /// Streams of the products that do not use the run's stream.
    beside: [OwnedStream; LANES - 1],
}

impl State {
    /// Calls `of` for every stream of the plan, also after an error, and returns the first error.
    fn each_of_own(&self, of: impl Fn(RawStream<'_>) -> Result<()>) -> Result<()> {
        let all = std::iter::once(&self.copies).chain(&self.beside);
        let ended: Vec<_> = all.map(|own| of(own.raw())).collect();
        ended.into_iter().collect()
    }
}

/// Events between the streams.
#[derive(Debug)]
struct Marks {
    start: Event,
    /// End of the products on a stream of `beside`.
    end: Event,
    copied: Vec<Event>,
    /// Per buffer: end of the product that reads it.
    used: Vec<Event>,
}

impl Marks {
    fn new(context: &PrimaryContext, buffers: usize) -> Result<Self> {
        let all = || (0..buffers).map(|_| Event::of(context)).collect::<Result<_>>();
        Ok(Marks {
            start: Event::of(context)?,
            end: Event::of(context)?,
            copied: all()?,
            used: all()?,
        })
    }
}

impl Streaming {
    pub(super) fn new(
        device: &Arc<Device>,
        product: SlabProduct,
        (slots, pattern, pinned): (SpmmSlots, PlannedPattern, bool),
        shown: (Predicted, usize),
    ) -> Result<Self> {
        let layout = product.layout();
        let (count, bytes) = (layout.buffers, layout.buffer_bytes);
        let staged = if pinned { 0 } else { count };
        let context = device.context();
        // Zeroed, because kernels read past the last nonzero of a chunk.
        let buffers = (0..count).map(|_| device.zeros(bytes)).collect::<Result<_>>()?;
        let staging = (0..staged).map(|_| PinnedMemory::zeros(context, bytes));
        let staging = staging.collect::<Result<_>>()?;
        context.set_current()?;
        Ok(Streaming {
            turns: Turns::new(device)?,
            state: Mutex::new(State {
                live: Marks::new(context, count)?,
                captured: Marks::new(context, count)?,
                next: 0,
                replays: false,
                staging,
                copies: OwnedStream::of(context)?,
                beside: [OwnedStream::of(context)?],
            }),
            product,
            buffers,
            slots,
            pattern,
            shown,
            device: Arc::clone(device),
        })
    }

    fn element(&self) -> usize {
        self.product.row().dtype.bytes()
    }

    /// Queues all chunks. After an error, no work of the run is left running.
    fn queue(&self, from: HostArrays<'_>, raw: &RawSpmm, queue: Queue<'_>) -> Result<()> {
        let stream = queue.stream();
        let capturing = stream.is_capturing()?;
        if capturing && !from.pinned {
            return Err(Error::capture(self.pattern.name(), NOT_CAPTURED));
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        if !capturing && state.copies.raw().is_capturing()? {
            let reason = "a run of this plan is being captured from another one";
            return Err(Error::capture("stream", reason));
        }
        let ran = self.slabs(state, (from, capturing), raw, queue);
        if ran.is_err() {
            let ended = match capturing {
                // The capture ends in an error, and all streams must have joined it again.
                true => state.each_of_own(|own| {
                    let end = &state.captured.end;
                    end.record(own).and_then(|()| stream.wait(end))
                }),
                false => state.each_of_own(|own| own.synchronize()).and(stream.synchronize()),
            };
            if let Err(error) = ended {
                tracing::warn!(%error, "what was queued of a failed run did not end");
            }
        }
        ran
    }

    fn slabs(
        &self,
        state: &mut State,
        (from, capturing): (HostArrays<'_>, bool),
        raw: &RawSpmm,
        queue: Queue<'_>,
    ) -> Result<()> {
        let State { live, captured, next, replays, staging, copies, beside } = state;
        let (stream, copies) = (queue.stream(), copies.raw());
        // SAFETY: their work starts after the earlier work of `queue`, and ends before its later work.
        let beside = beside.each_ref().map(|own| unsafe { Queue::new(own.raw()) });
        let [second] = beside;
        let queues: [Queue<'_>; LANES] = [queue, second];
        *replays |= capturing;
        let marks = if capturing { captured } else { live };
        marks.start.record(stream)?;
        beside.iter().try_for_each(|own| own.stream().wait(&marks.start))?;
        if *replays {
            copies.wait(&marks.start)?;
        }
        let count = self.buffers.len();
        for slab in 0..self.product.layout().slabs.len() {
            let at = *next;
            *next = (at + 1) % count;
            // In a capture, the first copy to each buffer waits only for the start.
            let own = !capturing || slab >= count;
            if own {
                copies.wait(&marks.used[at])?;
            }
            match staging.get_mut(at).filter(|_| !from.pinned) {
                Some(staged) => {
                    marks.copied[at].synchronize()?;
                    self.stage(slab, from, staged);
                    self.copy_staged(slab, (staged, at), copies)?;
                }
                None => self.copy(slab, from, at, copies)?,
            }
            marks.copied[at].record(copies)?;
            let lane = slab % LANES;
            let on = queues[lane].stream();
            on.wait(&marks.copied[at])?;
            let buffer = self.buffers[at].address();
            self.product.run((slab, lane), buffer, raw, queues[lane])?;
            marks.used[at].record(on)?;
        }
        beside.iter().try_for_each(|own| {
            marks.end.record(own.stream())?;
            stream.wait(&marks.end)
        })
    }

    /// Queues the copies of a chunk from the arrays of A.
    fn copy(
        &self,
        slab: usize,
        from: HostArrays<'_>,
        at: usize,
        copies: RawStream<'_>,
    ) -> Result<()> {
        let layout = self.product.layout();
        let (slots, to) = (layout.slabs[slab].slots.clone(), self.buffers[at].address());
        let [values, lists] = layout.places(slab, self.element());
        let own = from.values.from(slots.start).first(slots.len());
        // SAFETY: a buffer has the size of its chunk. Pinned memory of A or of the plan is freed only after its readers
        // have ended. Pageable memory has been read by the driver when the call returns.
        unsafe {
            copy_htod_async(to, &from.columns[slots], copies)?;
            copy_htod_async(to + values as u64, own.bytes(), copies)?;
            copy_htod_async(to + lists as u64, self.product.streamed_lists(slab), copies)
        }
    }

    /// Copies a chunk to pinned memory, in the layout of a buffer. Earlier copies from this memory have ended.
    fn stage(&self, slab: usize, from: HostArrays<'_>, staged: &mut PinnedMemory) {
        let layout = self.product.layout();
        let slots = layout.slabs[slab].slots.clone();
        let [values, _] = layout.places(slab, self.element());
        let own = from.values.from(slots.start).first(slots.len()).bytes();
        let columns: &[u8] = bytemuck::cast_slice(&from.columns[slots]);
        let (first, rest) = staged.bytes_mut().split_at_mut(values);
        for (to, from) in [(first, columns), (rest, own)] {
            parallel::chunks(&mut to[..from.len()], CHUNK, &|chunk, to| {
                to.copy_from_slice(&from[chunk * CHUNK..][..to.len()]);
            });
        }
    }

    fn copy_staged(
        &self,
        slab: usize,
        (staged, at): (&PinnedMemory, usize),
        copies: RawStream<'_>,
    ) -> Result<()> {
        let layout = self.product.layout();
        let (slots, to) = (layout.slabs[slab].slots.len(), self.buffers[at].address());
        let [values, lists] = layout.places(slab, self.element());
        let end = values + slots * self.element();
        // SAFETY: as in `copy`.
        unsafe {
            copy_htod_async(to, &staged.bytes()[..end], copies)?;
            copy_htod_async(to + lists as u64, self.product.streamed_lists(slab), copies)
        }
    }
}

impl Executable for Streaming {
    fn variant(&self) -> &'static str {
        self.product.row().name
    }

    fn bytes(&self) -> usize {
        let buffers = self.buffers.iter().map(DeviceMemory::bytes);
        buffers.sum::<usize>() + self.product.bytes()
    }

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.dense(out)?;
        let from = given_in(&self.pattern, self.product.row().dtype, run.operand(self.slots.a)?)?;
        // A is in host memory.
        let others = with(run.operands, self.slots.a, None);
        let queue = run.with(&others).queue(out)?;
        let raw = self.slots.bind(run, (0, 0), out)?;
        self.product.check(&raw)?;
        self.device.context().set_current()?;
        self.turns.queue(true, queue.stream(), || self.queue(from, &raw, queue))
    }
}

impl fmt::Display for Streaming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = self.product.row();
        let shown = Shown {
            layout: self.product.layout(),
            element: self.element(),
            predicted: self.shown.0,
            limit: self.shown.1,
        };
        crate::offer::write_kernel(f, row, shown)
    }
}
