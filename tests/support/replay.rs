//! A captured graph that is launched repeatedly, while its inputs are rewritten between launches.

use einsparse::{Graph, Result, Stream};

pub struct Replay<'s> {
    graph: Graph,
    stream: &'s Stream,
}

impl<'s> Replay<'s> {
    /// Runs the work once, for allocations that only a first run makes, and then captures it.
    pub fn of(stream: &'s Stream, mut queue: impl FnMut() -> Result<()>) -> Self {
        queue().unwrap();
        stream.synchronize().unwrap();
        let graph = Graph::capture(stream.raw(), |_| queue()).unwrap();
        Replay { graph, stream }
    }

    /// Launches the graph and waits for it.
    ///
    /// # Safety
    /// All memory that the captured work uses must be alive.
    pub unsafe fn run(&mut self) {
        // SAFETY: the caller upholds the contract; the next line waits.
        unsafe { self.graph.launch(self.stream.raw()).unwrap() };
        self.stream.synchronize().unwrap();
    }
}
