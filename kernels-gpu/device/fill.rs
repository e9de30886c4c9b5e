//! Producer's side of a ring of stages that a loader fills.

use super::gpu;
use super::loader::Loader;
use super::maps::Maps;
use super::stages::{Ring, Stages};
use super::warpgroup::CONSUMER_WARPS;

/// Initializes the mbarriers of a ring: `fill` arrivals fill a stage, and every consumer warp releases it. Prefetches
/// the loader's `MAPS` tensor maps, the first at `at`. All threads of the thread block synchronize.
#[inline(always)]
pub(crate) fn make_ring<S: Stages, L: Loader, const MAPS: usize>(at: Maps, fill: u32) {
    if gpu::thread() == 0 {
        S::make_barriers(fill, CONSUMER_WARPS);
        L::prefetch_maps::<MAPS>(at);
    }
    gpu::sync_threads();
}

impl<S: Stages> Ring<S> {
    /// Waits until the current stage is empty, starts its copies of `bytes` bytes by `start`, and advances. `thread`:
    /// number of this thread among those that call [`Loader::expect`].
    #[inline(always)]
    pub(crate) fn fill<L: Loader>(&mut self, thread: u32, bytes: u32, start: impl FnOnce(u32)) {
        let slot = self.wait_empty();
        L::expect(self.full(), thread, bytes, false);
        start(slot);
        L::started(self.full(), thread);
        self.advance();
    }
}
