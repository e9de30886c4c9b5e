//! Streams from anywhere, and events that time them.

use std::ffi::c_int;
use std::marker::PhantomData;

use super::sys::{self, CUevent, CUstream};
use super::{PrimaryContext, check};
use crate::error::{Error, Result};

/// A stream borrowed by its handle: ours, cust's, or another CUDA crate's. Copying it copies the borrow.
///
/// ```
/// use einsparse::raw::RawStream;
/// let ctx = einsparse::Context::new();
/// let stream = ctx.stream()?;
/// let handle = stream.raw().as_raw(); // for other CUDA libraries
/// // SAFETY: the stream lives on.
/// let same = unsafe { RawStream::from_raw(handle) };
/// assert_eq!(same.as_raw(), handle);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawStream<'a>(CUstream, PhantomData<&'a ()>);

// SAFETY: a stream handle may be used from every thread; the driver locks.
unsafe impl Send for RawStream<'_> {}
// SAFETY: as above.
unsafe impl Sync for RawStream<'_> {}

impl RawStream<'_> {
    /// The legacy default stream, which waits for and is waited for by blocking streams.
    pub const LEGACY: Self = Self(std::ptr::null_mut(), PhantomData);

    /// The stream of a GPU that is not there, and of a CPU context: what is queued is checked and never runs. No driver
    /// gives this handle.
    pub(crate) const ABSENT: Self = Self(std::ptr::without_provenance_mut(usize::MAX), PhantomData);

    /// Whether nothing that is queued runs.
    pub(crate) fn is_absent(self) -> bool {
        self == RawStream::ABSENT
    }

    /// A stream from a raw `CUstream` (or `cudaStream_t`: the same handle).
    ///
    /// # Safety
    /// The handle is null or a stream that lives as long as the result's lifetime, and its context
    /// is the one current at every use.
    pub unsafe fn from_raw(handle: *mut std::ffi::c_void) -> Self {
        Self(handle.cast(), PhantomData)
    }

    /// The handle, for other CUDA crates.
    pub fn as_raw(self) -> *mut std::ffi::c_void {
        match self.is_absent() {
            true => std::ptr::null_mut(),
            false => self.0.cast(),
        }
    }

    pub(super) fn handle(self) -> CUstream {
        self.0
    }

    /// Makes the stream's context the one of this thread. A default stream has none of its own.
    pub(crate) fn set_current(self) -> Result<()> {
        // Null, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD.
        const DEFAULTS: usize = 2;
        if self.0.addr() <= DEFAULTS || self.is_absent() {
            return Ok(());
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: the handle is valid by the contract of `from_raw`; a place for one handle.
        check("cuStreamGetCtx", unsafe { sys::cuStreamGetCtx(self.0, &mut context) })?;
        // SAFETY: the context of a stream that lives.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context) })
    }

    /// Waits until all work queued so far is done.
    pub fn synchronize(self) -> Result<()> {
        if self.is_absent() {
            return Ok(());
        }
        // SAFETY: the handle is valid by the contract of `from_raw`.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.0) })
    }

    /// Whether all work queued so far is done.
    pub fn is_done(self) -> Result<bool> {
        if self.is_absent() {
            return Ok(true);
        }
        const NOT_READY: u32 = 600;
        // SAFETY: as in `synchronize`.
        match unsafe { sys::cuStreamQuery(self.0) } {
            NOT_READY => Ok(false),
            code => check("cuStreamQuery", code).map(|()| true),
        }
    }

    /// Work queued from now on waits for `event`.
    pub fn wait(self, event: &Event) -> Result<()> {
        if self.is_absent() {
            return Ok(());
        }
        if event.0.is_null() {
            // A stream of a GPU, given to an operator of a CPU context.
            return Err(Error::elsewhere("stream"));
        }
        // SAFETY: as in `synchronize`; the event is alive.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.0, event.0, 0) })
    }

    /// Whether a graph is being captured from this stream.
    pub fn is_capturing(self) -> Result<bool> {
        if self.is_absent() {
            return Ok(false);
        }
        let mut status = 0;
        // SAFETY: as in `synchronize`; `status` is a place for one int.
        check("cuStreamIsCapturing", unsafe { sys::cuStreamIsCapturing(self.0, &mut status) })?;
        Ok(status != 0)
    }
}

#[cfg(feature = "cust")]
impl<'a> From<&'a cust::stream::Stream> for RawStream<'a> {
    fn from(stream: &'a cust::stream::Stream) -> Self {
        Self(stream.as_inner().cast(), PhantomData)
    }
}

/// A stream of our own that does not synchronise with the legacy default stream, so that it can be captured
/// while other threads use that one. (cust drops this flag.)
#[derive(Debug)]
pub struct OwnedStream(CUstream);

// SAFETY: as for RawStream.
unsafe impl Send for OwnedStream {}
// SAFETY: as for RawStream.
unsafe impl Sync for OwnedStream {}

impl OwnedStream {
    /// A new stream in the current context.
    pub fn new() -> Result<Self> {
        Self::of_priority(0)
    }

    /// A new stream whose thread blocks go in front of those of other streams that wait for room.
    pub fn ahead() -> Result<Self> {
        // The driver takes the nearest that it has.
        Self::of_priority(-5)
    }

    fn of_priority(priority: c_int) -> Result<Self> {
        const NON_BLOCKING: u32 = 1;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a place for one stream.
        let code = unsafe { sys::cuStreamCreateWithPriority(&mut handle, NON_BLOCKING, priority) };
        check("cuStreamCreate", code)?;
        Ok(Self(handle))
    }

    /// A stream on which nothing runs.
    pub(crate) fn absent() -> Self {
        Self(RawStream::ABSENT.0)
    }

    /// A stream of this context.
    pub(crate) fn of(context: &PrimaryContext) -> Result<Self> {
        match context.is_absent() {
            true => Ok(Self::absent()),
            false => Self::new(),
        }
    }

    /// The stream, to queue on.
    pub fn raw(&self) -> RawStream<'_> {
        RawStream(self.0, PhantomData)
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        if self.raw().is_absent() {
            return;
        }
        // SAFETY: the stream is ours and destroyed once; the driver finishes its work first.
        let code = unsafe { sys::cuStreamDestroy_v2(self.0) };
        if let Err(error) = check("cuStreamDestroy", code) {
            tracing::warn!(%error, "stream was not destroyed");
        }
    }
}

/// A point in a stream, with its time.
#[derive(Debug)]
pub struct Event(CUevent);

// SAFETY: an event handle may be used from every thread; the driver locks.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// A new event in the current context.
    pub fn new() -> Result<Self> {
        Self::with_flags(0)
    }

    /// A new event without a time: cheaper, for order alone.
    pub fn for_order() -> Result<Self> {
        const DISABLE_TIMING: u32 = 2;
        Self::with_flags(DISABLE_TIMING)
    }

    /// An event for order, of this context.
    pub(crate) fn of(context: &PrimaryContext) -> Result<Self> {
        match context.is_absent() {
            true => Ok(Self(std::ptr::null_mut())),
            false => Self::for_order(),
        }
    }

    fn with_flags(flags: u32) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a place for one event.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut handle, flags) })?;
        Ok(Self(handle))
    }

    /// Marks the point after the work queued so far.
    pub fn record(&self, stream: RawStream) -> Result<()> {
        if stream.is_absent() {
            return Ok(());
        }
        // SAFETY: the event is alive and the stream valid.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.0, stream.handle()) })
    }

    /// Waits until the point is reached.
    pub fn synchronize(&self) -> Result<()> {
        if self.0.is_null() {
            return Ok(());
        }
        // SAFETY: the event is alive.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.0) })
    }

    /// Whether the point is reached.
    pub fn is_done(&self) -> Result<bool> {
        if self.0.is_null() {
            return Ok(true);
        }
        const NOT_READY: u32 = 600;
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.0) } {
            NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Milliseconds from `start` to this event, about half a microsecond fine. Both must have been reached.
    pub fn elapsed_ms(&self, start: &Event) -> Result<f32> {
        let mut milliseconds = 0.0;
        // SAFETY: both events are alive; `milliseconds` is a place for one float.
        let code = unsafe { sys::cuEventElapsedTime(&mut milliseconds, start.0, self.0) };
        check("cuEventElapsedTime", code)?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.0.is_null() {
            return;
        }
        // SAFETY: the event is ours and destroyed once.
        let code = unsafe { sys::cuEventDestroy_v2(self.0) };
        if let Err(error) = check("cuEventDestroy", code) {
            tracing::warn!(%error, "event was not destroyed");
        }
    }
}
