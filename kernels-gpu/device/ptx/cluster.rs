//! Clusters: thread blocks that access each other's shared memory. Compute capability 9.0.

use super::instructions;

instructions! {
    pub rank() -> u32 = a, out(reg32 a = 0): "mov.u32 {a}, %cluster_ctarank;", options(pure, nomem);
    /// Number of thread blocks in this cluster; 1 for a launch without clusters.
    pub size() -> u32 = a, out(reg32 a = 1u32): "mov.u32 {a}, %cluster_nctarank;", options(pure, nomem);
    /// Maps shared address `at` to thread block `rank` of the cluster. [`ld_v4`], [`st_async_v4`] and [`arrive_remote`]
    /// take the result.
    pub(in crate::device) mapa(at: u32, rank: u32) -> u32 = to, out(reg32 to = 0):
        "mapa.shared::cluster.u32 {to}, {at}, {rank};", in(reg32 at rank), options(pure, nomem);
    /// Loads 16 bytes from the shared memory of a thread block of the cluster.
    pub(in crate::device) [unsafe] ld_v4(from: u32) -> [u32; 4] = [a, b, c, d], out(reg32 a b c d = 0):
        "ld.shared::cluster.v4.u32 {{{a}, {b}, {c}, {d}}}, [{from}];", in(reg32 from);
    /// Stores 16 bytes asynchronously to the shared memory of a thread block of the cluster. They complete `barrier`,
    /// an mbarrier of that thread block.
    pub(in crate::device) [unsafe] st_async_v4(to: u32, [a, b, c, d]: [u32; 4], barrier: u32):
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [{to}], {{{a}, {b}, {c}, {d}}}, [{barrier}];",
        in(reg32 to a b c d barrier);
    /// Arrives at an mbarrier of another thread block, by its [`mapa`] address.
    pub(in crate::device) [unsafe] arrive_remote(barrier: u32): "mbarrier.arrive.shared::cluster.b64 _, [{barrier}];", in(reg32 barrier);
    /// Arrives at the cluster barrier. Earlier writes are visible to threads that [`wait`].
    pub arrive(): "barrier.cluster.arrive.release;";
    /// Arrives at the cluster barrier without release semantics: earlier writes are not made visible, which would take
    /// a microsecond. mbarriers initialized before [`super::barrier::init_fence`] are visible.
    pub arrive_relaxed(): "barrier.cluster.arrive.relaxed;";
    /// Waits until all running threads of the cluster have arrived.
    pub wait(): "barrier.cluster.wait.acquire;";
}
