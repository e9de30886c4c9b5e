//! Thread blocks of a cluster: their shared memory is within reach of each other. Compute capability 9.0.

use super::ptx;

/// Number of this thread block in its cluster.
#[inline(always)]
pub fn rank() -> u32 {
    let mut a = 0u32;
    ptx!("mov.u32 {a}, %cluster_ctarank;", a = inout(reg32) a, options(pure, nomem, nostack));
    a
}

/// Address, for [`send_v4`], of what lies at shared `at` in another thread block of the cluster.
#[inline(always)]
pub fn place(at: u32, rank: u32) -> u32 {
    let mut to = 0u32;
    ptx!(
        "mapa.shared::cluster.u32 {to}, {at}, {rank};",
        to = inout(reg32) to, at = in(reg32) at, rank = in(reg32) rank,
        options(pure, nomem, nostack)
    );
    to
}

/// Sends 16 bytes to the shared memory of a thread block of the cluster; they count at `barrier`, which lies there too.
#[inline(always)]
pub fn send_v4(to: u32, v: [u32; 4], barrier: u32) {
    ptx!(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [{to}], {{{a}, {b}, {c}, {d}}}, [{bar}];",
        to = in(reg32) to, a = in(reg32) v[0], b = in(reg32) v[1], c = in(reg32) v[2], d = in(reg32) v[3],
        bar = in(reg32) barrier, options(nostack)
    );
}

/// Arrives at the barrier of all threads of the cluster. It tells nothing of what was written and waits for none of it, which
/// takes a microsecond; but for the barriers that were made before [`super::barrier::init_fence`].
#[inline(always)]
pub fn arrive() {
    ptx!("barrier.cluster.arrive.relaxed;", options(nostack));
}

/// Waits until all threads of the cluster that still run have arrived.
#[inline(always)]
pub fn wait() {
    ptx!("barrier.cluster.wait.acquire;", options(nostack));
}
