//! Thread blocks of a cluster: their shared memory is within reach of each other. Compute capability 9.0.

use super::ptx;

/// Number of this thread block in its cluster.
#[inline(always)]
pub fn rank() -> u32 {
    let mut a = 0u32;
    ptx!("mov.u32 {a}, %cluster_ctarank;", a = inout(reg32) a, options(pure, nomem, nostack));
    a
}

/// Thread blocks in this cluster; 1 where it was launched without clusters.
#[inline(always)]
pub fn size() -> u32 {
    let mut a = 1u32;
    ptx!("mov.u32 {a}, %cluster_nctarank;", a = inout(reg32) a, options(pure, nomem, nostack));
    a
}

/// Address, for [`load_v4`] and [`send_v4`], of what lies at shared `at` in another thread block of the cluster.
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

/// Loads 16 bytes from the shared memory of a thread block of the cluster.
#[inline(always)]
pub fn load_v4(from: u32) -> [u32; 4] {
    let (mut a, mut b, mut c, mut d) = (0u32, 0u32, 0u32, 0u32);
    ptx!(
        "ld.shared::cluster.v4.u32 {{{a}, {b}, {c}, {d}}}, [{from}];",
        a = inout(reg32) a, b = inout(reg32) b, c = inout(reg32) c, d = inout(reg32) d, from = in(reg32) from,
        options(nostack)
    );
    [a, b, c, d]
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

/// Arrives at the barrier of all threads of the cluster; what was written is seen by those who [`wait`].
#[inline(always)]
pub fn arrive() {
    ptx!("barrier.cluster.arrive.release;", options(nostack));
}

/// Arrives at the barrier of all threads of the cluster. It tells nothing of what was written and waits for none of it,
/// which takes a microsecond; but for the barriers that were made before [`super::barrier::init_fence`].
#[inline(always)]
pub fn arrive_relaxed() {
    ptx!("barrier.cluster.arrive.relaxed;", options(nostack));
}

/// Waits until all threads of the cluster that still run have arrived.
#[inline(always)]
pub fn wait() {
    ptx!("barrier.cluster.wait.acquire;", options(nostack));
}
