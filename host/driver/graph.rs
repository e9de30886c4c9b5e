//! CUDA graphs: capture a stream once, replay it with one call.

use super::sys::{self, CUgraph, CUgraphExec};
use super::{RawStream, check};
use crate::error::Result;

/// What a capture recorded.
struct Captured(CUgraph);

impl Drop for Captured {
    fn drop(&mut self) {
        // SAFETY: the graph is ours and destroyed once.
        let code = unsafe { sys::cuGraphDestroy(self.0) };
        if let Err(error) = check("cuGraphDestroy", code) {
            tracing::warn!(%error, "graph was not destroyed");
        }
    }
}

/// Ends a capture that a failure or a panic left open; an open capture would poison the stream.
struct OpenCapture<'a>(Option<RawStream<'a>>);

impl<'a> OpenCapture<'a> {
    fn begin(stream: RawStream<'a>) -> Result<Self> {
        /// CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may go on allocating.
        const THREAD_LOCAL: i32 = 1;
        // SAFETY: the stream is valid by RawStream's contract.
        let code = unsafe { sys::cuStreamBeginCapture_v2(stream.handle(), THREAD_LOCAL) };
        check("cuStreamBeginCapture", code)?;
        Ok(Self(Some(stream)))
    }

    fn end(&mut self) -> Result<Option<Captured>> {
        let Some(stream) = self.0.take() else {
            return Ok(None);
        };
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is being captured by us; `graph` is a place for one handle.
        let code = unsafe { sys::cuStreamEndCapture(stream.handle(), &mut graph) };
        let graph = (!graph.is_null()).then_some(Captured(graph));
        check("cuStreamEndCapture", code)?;
        Ok(graph)
    }
}

impl Drop for OpenCapture<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, "abandoned capture");
        }
    }
}

/// Work that was captured from a stream, ready to launch as often as wanted.
///
/// ```
/// use einsparse::formats::{Csr, CsrPattern, Dense};
/// use einsparse::{Context, Graph, Operand};
/// let ctx = Context::new();
/// let a = ctx.upload(Csr::new(CsrPattern::new(2, 2, vec![0, 1, 2], vec![1, 0])?, vec![2.0f32, 3.0])?)?;
/// let b = ctx.upload_dense(&Dense::from_fn([2, 4], |i| i[1] as f32)?)?;
/// let mut c = ctx.zeros(&[2, 4])?;
/// let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
/// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operands(&operands).build()?;
/// let stream = ctx.stream()?;
/// if ctx.is_cuda() {
///     let mut graph = Graph::capture(stream.raw(), |_| plan.run(&operands, &mut c, &stream))?;
///     // SAFETY: plan and tensors are alive until the stream has waited, and nothing else uses them.
///     unsafe { graph.launch(stream.raw())? };
///     stream.synchronize()?;
/// }
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Graph(CUgraphExec);

// SAFETY: the handle is not tied to a thread; launching takes `&mut self`, so calls never overlap.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what `work` queues on `stream` instead of running it. `work` must not allocate or synchronise.
    /// The legacy default stream cannot be captured.
    ///
    /// # Errors
    /// Errors of `work` and of the driver; [`Error::Operand`](crate::Error::Operand) for the stream
    /// of a CPU context. A graph is launched when what it was captured from is no longer borrowed, and on a CPU there is
    /// nothing that could run then: call the plan or the operator again.
    pub fn capture<'a>(
        stream: RawStream<'a>,
        work: impl FnOnce(RawStream<'a>) -> Result<()>,
    ) -> Result<Self> {
        if stream.is_absent() {
            return Err(crate::Error::operand(
                "stream",
                "is of a CPU context, which has done its work when a call returns: there is nothing to capture, so call \
                 it again in place of a replay",
            ));
        }
        let mut open = OpenCapture::begin(stream)?;
        work(stream)?;
        let captured = open.end()?.ok_or_else(|| crate::Error::Cuda {
            call: "cuStreamEndCapture".into(),
            reason: "no graph came back".into(),
        })?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph is alive; `exec` is a place for one handle.
        let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, captured.0, 0) };
        check("cuGraphInstantiate", code)?;
        Ok(Graph(exec))
    }

    /// Uploads the graph, so that the first launch costs no more than later ones.
    pub fn upload(&mut self, stream: RawStream<'_>) -> Result<()> {
        // SAFETY: graph and stream are alive.
        check("cuGraphUpload", unsafe { sys::cuGraphUpload(self.0, stream.handle()) })
    }

    /// Queues the whole graph on `stream`.
    ///
    /// # Safety
    /// All memory and modules that the captured work names are still alive, and stay so until it is done. Until then
    /// nothing else uses what that work writes: no other replay of it, no run of a plan or operator that it was
    /// captured from, which keep lists and partial sums of their own (within one stream the order of calls sees to
    /// that), and no update of a plan's values.
    pub unsafe fn launch(&mut self, stream: RawStream<'_>) -> Result<()> {
        // SAFETY: graph and stream are alive; the rest is the caller's promise.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.0, stream.handle()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and destroyed once; the driver waits for a launch in flight.
        let code = unsafe { sys::cuGraphExecDestroy(self.0) };
        if let Err(error) = check("cuGraphExecDestroy", code) {
            tracing::warn!(%error, "graph was not destroyed");
        }
    }
}
