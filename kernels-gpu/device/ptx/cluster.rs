//! Thread blocks of a cluster: their shared memory is within reach of each other. Compute capability 9.0.

use super::instructions;

instructions! {
    pub rank() -> u32 = a, out(reg32 a = 0): "mov.u32 {a}, %cluster_ctarank;", options(pure, nomem);
    /// Thread blocks in this cluster; 1 where it was launched without clusters.
    pub size() -> u32 = a, out(reg32 a = 1u32): "mov.u32 {a}, %cluster_nctarank;", options(pure, nomem);
    /// Address, for [`ld_v4`], [`st_async_v4`] and [`arrive_remote`], of what lies at shared `at` in another thread block of the
    /// cluster.
    pub mapa(at: u32, rank: u32) -> u32 = to, out(reg32 to = 0):
        "mapa.shared::cluster.u32 {to}, {at}, {rank};", in(reg32 at rank), options(pure, nomem);
    /// Loads 16 bytes from the shared memory of a thread block of the cluster.
    pub ld_v4(from: u32) -> [u32; 4] = [a, b, c, d], out(reg32 a b c d = 0):
        "ld.shared::cluster.v4.u32 {{{a}, {b}, {c}, {d}}}, [{from}];", in(reg32 from);
    /// Sends 16 bytes to the shared memory of a thread block of the cluster; they count at `barrier`, which lies there
    /// too.
    pub st_async_v4(to: u32, [a, b, c, d]: [u32; 4], barrier: u32):
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [{to}], {{{a}, {b}, {c}, {d}}}, [{barrier}];",
        in(reg32 to a b c d barrier);
    /// Arrives at a barrier in shared memory of another thread block, at its [`mapa`].
    pub arrive_remote(barrier: u32): "mbarrier.arrive.shared::cluster.b64 _, [{barrier}];", in(reg32 barrier);
    /// Arrives at the barrier of all threads of the cluster; what was written is seen by those who [`wait`].
    pub arrive(): "barrier.cluster.arrive.release;";
    /// Arrives at the barrier of all threads of the cluster. It tells nothing of what was written and waits for none of
    /// it, which takes a microsecond; but for the barriers that were made before [`super::barrier::init_fence`].
    pub arrive_relaxed(): "barrier.cluster.arrive.relaxed;";
    /// Waits until all threads of the cluster that still run have arrived.
    pub wait(): "barrier.cluster.wait.acquire;";
}
