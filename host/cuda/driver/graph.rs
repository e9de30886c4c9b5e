//! CUDA graphs: a stream is captured once, and one call replays the work.

use super::sys::{self, CUgraph, CUgraphExec};
use super::{RawStream, check};
use crate::error::Result;

/// Graph that a capture recorded.
struct Captured(CUgraph);

impl Drop for Captured {
    fn drop(&mut self) {
        // SAFETY: this value owns the graph, which is destroyed once.
        let code = unsafe { sys::cuGraphDestroy(self.0) };
        if let Err(error) = check("cuGraphDestroy", code) {
            tracing::warn!(%error, "graph was not destroyed");
        }
    }
}

/// Ends a capture that a failure or a panic left open. An open capture would make the stream unusable.
struct OpenCapture<'a>(Option<RawStream<'a>>);

impl<'a> OpenCapture<'a> {
    fn begin(stream: RawStream<'a>) -> Result<Self> {
        /// Value of CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may still allocate.
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
        // SAFETY: this value began the capture of the stream, and `graph` can hold one handle.
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

/// Work that was captured from a stream and can be launched any number of times.
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

// SAFETY: the handle is not bound to a thread. Launches take `&mut self`, so calls never overlap.
unsafe impl Send for Graph {}

impl Graph {
    /// Records the work that `work` queues on `stream`, and does not run it. `work` must not allocate or synchronize.
    /// The legacy default stream cannot be captured.
    ///
    /// # Errors
    /// Returns the errors of `work` and of the driver, and [`Error::Capture`](crate::Error::Capture) for a stream of a
    /// CPU context. A graph is launched when its operands are no longer borrowed, so a CPU has nothing to replay. Call
    /// the plan or the operator again instead.
    pub fn capture<'a>(
        stream: RawStream<'a>,
        work: impl FnOnce(RawStream<'a>) -> Result<()>,
    ) -> Result<Self> {
        if stream.is_absent() {
            return Err(crate::Error::capture(
                "stream",
                "is of a CPU context, which has done its work when a call returns: there is nothing to capture, so call \
                 it again in place of a replay",
            ));
        }
        let mut open = OpenCapture::begin(stream)?;
        work(stream)?;
        let captured = open
            .end()?
            .ok_or_else(|| crate::Error::cuda("cuStreamEndCapture", "no graph came back"))?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph is alive, and `exec` can hold one handle.
        let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, captured.0, 0) };
        check("cuGraphInstantiate", code)?;
        Ok(Graph(exec))
    }

    /// Uploads the graph, so that the first launch takes no longer than later launches.
    pub fn upload(&mut self, stream: RawStream<'_>) -> Result<()> {
        // SAFETY: graph and stream are alive.
        check("cuGraphUpload", unsafe { sys::cuGraphUpload(self.0, stream.handle()) })
    }

    /// Queues the whole graph on `stream`.
    ///
    /// # Safety
    /// - All memory and modules that the captured work uses are alive until the work is done.
    /// - Until then, no other code uses the memory that the work writes. This excludes another replay, an update of a
    ///   plan's values, and runs of a captured plan or operator, which use the same lists and partial sums. Calls in
    ///   one stream are ordered and satisfy this condition.
    pub unsafe fn launch(&mut self, stream: RawStream<'_>) -> Result<()> {
        // SAFETY: graph and stream are alive. The caller guarantees the rest.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.0, stream.handle()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: this value owns the handle, which is destroyed once. The driver waits for a launch in flight.
        let code = unsafe { sys::cuGraphExecDestroy(self.0) };
        if let Err(error) = check("cuGraphExecDestroy", code) {
            tracing::warn!(%error, "graph was not destroyed");
        }
    }
}
