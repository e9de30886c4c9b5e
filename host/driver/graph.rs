//! CUDA graphs: capture a stream once, replay it with one call.

use super::sys::{self, CUgraph, CUgraphExec};
use super::{RawStream, check};
use crate::error::Result;

/// A captured graph.
#[derive(Debug)]
pub struct Graph(CUgraph);

// SAFETY: the handle is not tied to a thread; all uses through `&self` only read the graph.
unsafe impl Send for Graph {}

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

    fn end(&mut self) -> Result<Option<Graph>> {
        let Some(stream) = self.0.take() else {
            return Ok(None);
        };
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is being captured by us; `graph` is a place for one handle.
        let code = unsafe { sys::cuStreamEndCapture(stream.handle(), &mut graph) };
        let graph = (!graph.is_null()).then_some(Graph(graph));
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

impl Graph {
    /// Records what `work` queues on `stream` instead of running it. `work` must not allocate or synchronise.
    /// The legacy default stream cannot be captured.
    pub fn capture<'a>(
        stream: RawStream<'a>,
        work: impl FnOnce(RawStream<'a>) -> Result<()>,
    ) -> Result<Self> {
        let mut open = OpenCapture::begin(stream)?;
        work(stream)?;
        open.end()?.ok_or_else(|| crate::Error::Cuda {
            call: "cuStreamEndCapture".into(),
            reason: "no graph came back".into(),
        })
    }

    /// Prepares the graph for launching.
    pub fn instantiate(&self) -> Result<GraphExec> {
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph is alive; `exec` is a place for one handle.
        let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, self.0, 0) };
        check("cuGraphInstantiate", code)?;
        Ok(GraphExec(exec))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is ours and destroyed once.
        let code = unsafe { sys::cuGraphDestroy(self.0) };
        if let Err(error) = check("cuGraphDestroy", code) {
            tracing::warn!(%error, "graph was not destroyed");
        }
    }
}

/// A graph ready to launch.
#[derive(Debug)]
pub struct GraphExec(CUgraphExec);

// SAFETY: the handle is not tied to a thread; launching takes `&mut self`, so calls never overlap.
unsafe impl Send for GraphExec {}

impl GraphExec {
    /// Uploads the graph, so that the first launch costs no more than later ones.
    pub fn upload(&mut self, stream: RawStream<'_>) -> Result<()> {
        // SAFETY: graph and stream are alive.
        check("cuGraphUpload", unsafe {
            sys::cuGraphUpload(self.0, stream.handle())
        })
    }

    /// Queues the whole graph on `stream`.
    ///
    /// # Safety
    /// All memory and modules that the captured work names are still alive, and stay so until it is done. Until then
    /// nothing else uses what that work writes: no other replay of it, no run of a plan or operator that it was
    /// captured from, which keep lists and partial sums of their own (within one stream the order of calls sees to
    /// that), and no refresh of a plan's values.
    pub unsafe fn launch(&mut self, stream: RawStream<'_>) -> Result<()> {
        // SAFETY: graph and stream are alive; the rest is the caller's promise.
        check("cuGraphLaunch", unsafe {
            sys::cuGraphLaunch(self.0, stream.handle())
        })
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and destroyed once; the driver waits for a launch in flight.
        let code = unsafe { sys::cuGraphExecDestroy(self.0) };
        if let Err(error) = check("cuGraphExecDestroy", code) {
            tracing::warn!(%error, "graph was not destroyed");
        }
    }
}
