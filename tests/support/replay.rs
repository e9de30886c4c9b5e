//! A captured graph that is launched again and again, while what its work reads is written anew in between.

use einsparse::{Graph, Result, Stream};

pub struct Replay<'s> {
    graph: Graph,
    stream: &'s Stream,
}

impl<'s> Replay<'s> {
    /// Runs the work once, for what only a first run makes, then captures it.
    pub fn of(stream: &'s Stream, mut queue: impl FnMut() -> Result<()>) -> Self {
        queue().unwrap();
        stream.synchronize().unwrap();
        let graph = Graph::capture(stream.raw(), |_| queue()).unwrap();
        Replay { graph, stream }
    }

    /// Launches the graph, and waits for it.
    ///
    /// # Safety
    /// Everything that the captured work names is alive.
    pub unsafe fn run(&mut self) {
        // SAFETY: the caller's promise; the wait is here.
        unsafe { self.graph.launch(self.stream.raw()).unwrap() };
        self.stream.synchronize().unwrap();
    }
}
