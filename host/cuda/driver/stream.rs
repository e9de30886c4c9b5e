//! Streams from any source, and events for timing and ordering.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use super::sys::{self, CUevent, CUstream};
use super::{PrimaryContext, check};
use crate::error::{Error, Result};

/// Stream borrowed by its handle: of this crate, of cust, or of another CUDA crate. A copy copies the borrow.
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
pub struct RawStream<'a>(CUstream, u64, PhantomData<&'a ()>);

// SAFETY: the driver locks, so any thread may use a stream handle.
unsafe impl Send for RawStream<'_> {}
// SAFETY: the driver locks.
unsafe impl Sync for RawStream<'_> {}

impl RawStream<'_> {
    /// The legacy default stream. It synchronizes with all blocking streams.
    pub const LEGACY: Self = Self(std::ptr::null_mut(), 0, PhantomData);

    /// Stream of an absent GPU and of a CPU context. Work queued on it is validated and never runs. No driver returns
    /// this handle.
    pub const ABSENT: Self = Self(std::ptr::without_provenance_mut(usize::MAX), 0, PhantomData);

    /// Whether queued work never runs.
    pub fn is_absent(self) -> bool {
        self.0 == RawStream::ABSENT.0
    }

    /// Number that no other stream of this process has had. `None` for a stream of another owner: the driver reuses the
    /// handle of a destroyed stream.
    pub fn number(self) -> Option<u64> {
        (self.1 != 0).then_some(self.1)
    }

    /// Creates a stream from a raw `CUstream` or `cudaStream_t`, which are the same handle.
    ///
    /// # Safety
    /// The handle is null or a stream that lives for the lifetime of the result. At every use, the current context is
    /// that of the stream.
    pub unsafe fn from_raw(handle: *mut std::ffi::c_void) -> Self {
        Self(handle.cast(), 0, PhantomData)
    }

    /// Returns the handle, for other CUDA crates.
    pub fn as_raw(self) -> *mut std::ffi::c_void {
        match self.is_absent() {
            true => std::ptr::null_mut(),
            false => self.0.cast(),
        }
    }

    pub(super) fn handle(self) -> CUstream {
        self.0
    }

    /// Makes the stream's context current on this thread. Does nothing for default streams, which belong to any
    /// context.
    pub fn set_current(self) -> Result<()> {
        // Max handle value of the default streams: null, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD.
        const DEFAULTS: usize = 2;
        if self.0.addr() <= DEFAULTS || self.is_absent() {
            return Ok(());
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: the handle is valid by the contract of `from_raw`, and `context` can hold one handle.
        check("cuStreamGetCtx", unsafe { sys::cuStreamGetCtx(self.0, &mut context) })?;
        // SAFETY: the stream is alive, so its context is too.
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
        // SAFETY: the handle is valid by the contract of `from_raw`.
        match unsafe { sys::cuStreamQuery(self.0) } {
            NOT_READY => Ok(false),
            code => check("cuStreamQuery", code).map(|()| true),
        }
    }

    /// Makes work that is queued from now on wait for `event`.
    pub fn wait(self, event: &Event) -> Result<()> {
        if self.is_absent() {
            return Ok(());
        }
        if event.0.is_null() {
            // The stream is of a GPU, but the operator is of a CPU context.
            return Err(Error::elsewhere("stream"));
        }
        // SAFETY: the handle is valid by the contract of `from_raw`, and the event is alive.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.0, event.0, 0) })
    }

    /// Whether a graph is being captured from this stream.
    pub fn is_capturing(self) -> Result<bool> {
        if self.is_absent() {
            return Ok(false);
        }
        let mut status = 0;
        // SAFETY: the handle is valid by the contract of `from_raw`, and `status` can hold one int.
        check("cuStreamIsCapturing", unsafe { sys::cuStreamIsCapturing(self.0, &mut status) })?;
        Ok(status != 0)
    }
}

#[cfg(feature = "cust")]
impl<'a> From<&'a cust::stream::Stream> for RawStream<'a> {
    fn from(stream: &'a cust::stream::Stream) -> Self {
        Self(stream.as_inner().cast(), 0, PhantomData)
    }
}

/// Owned stream that does not synchronize with the legacy default stream. It can be captured while other threads use
/// the default stream. (cust does not pass this flag on.)
#[derive(Debug)]
pub struct OwnedStream(CUstream, u64);

// SAFETY: the driver locks, so any thread may use a stream handle.
unsafe impl Send for OwnedStream {}
// SAFETY: the driver locks.
unsafe impl Sync for OwnedStream {}

impl OwnedStream {
    /// Creates a stream in the current context.
    pub fn new() -> Result<Self> {
        Self::of_priority(0)
    }

    /// Creates a stream of high priority. Its thread blocks are scheduled before waiting blocks of other streams.
    pub fn ahead() -> Result<Self> {
        // The driver clamps the priority to the range that it supports.
        Self::of_priority(-5)
    }

    fn of_priority(priority: c_int) -> Result<Self> {
        /// Number of the next stream.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        const NON_BLOCKING: u32 = 1;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` can hold one stream.
        let code = unsafe { sys::cuStreamCreateWithPriority(&mut handle, NON_BLOCKING, priority) };
        check("cuStreamCreate", code)?;
        Ok(Self(handle, NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// Creates a stream on which nothing runs.
    pub fn absent() -> Self {
        Self(RawStream::ABSENT.0, 0)
    }

    /// Creates a stream of this context.
    pub fn of(context: &PrimaryContext) -> Result<Self> {
        match context.is_absent() {
            true => Ok(Self::absent()),
            false => Self::new(),
        }
    }

    /// Returns the borrowed stream, for queueing work.
    pub fn raw(&self) -> RawStream<'_> {
        RawStream(self.0, self.1, PhantomData)
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        if self.raw().is_absent() {
            return;
        }
        // SAFETY: this value owns the stream, which is destroyed once. The driver finishes its work first.
        let code = unsafe { sys::cuStreamDestroy_v2(self.0) };
        if let Err(error) = check("cuStreamDestroy", code) {
            tracing::warn!(%error, "stream was not destroyed");
        }
    }
}

/// Point in a stream, with its time.
#[derive(Debug)]
pub struct Event(CUevent);

// SAFETY: the driver locks, so any thread may use an event handle.
unsafe impl Send for Event {}
// SAFETY: the driver locks.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event in the current context.
    pub fn new() -> Result<Self> {
        Self::with_flags(0)
    }

    /// Creates an event without a time. It is cheaper and only orders work.
    pub fn for_order() -> Result<Self> {
        const DISABLE_TIMING: u32 = 2;
        Self::with_flags(DISABLE_TIMING)
    }

    /// Creates an event without a time in this context.
    pub fn of(context: &PrimaryContext) -> Result<Self> {
        match context.is_absent() {
            true => Ok(Self(std::ptr::null_mut())),
            false => Self::for_order(),
        }
    }

    fn with_flags(flags: u32) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` can hold one event.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut handle, flags) })?;
        Ok(Self(handle))
    }

    /// Records the point after the work queued so far on `stream`.
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

    /// Returns the milliseconds from `start` to this event, at a resolution of about 0.5 us. Both must be reached.
    pub fn elapsed_ms(&self, start: &Event) -> Result<f32> {
        let mut milliseconds = 0.0;
        // SAFETY: both events are alive, and `milliseconds` can hold one float.
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
        // SAFETY: this value owns the event, which is destroyed once.
        let code = unsafe { sys::cuEventDestroy_v2(self.0) };
        if let Err(error) = check("cuEventDestroy", code) {
            tracing::warn!(%error, "event was not destroyed");
        }
    }
}
