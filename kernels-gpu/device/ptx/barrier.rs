//! Barriers in shared memory (`mbarrier`), named barriers, and `setmaxnreg` of warp-specialized kernels.

use super::{instructions, ptx};

instructions! {
    /// Initializes an mbarrier whose phase completes after `count` arrivals.
    pub(in crate::device) [unsafe] init(barrier: u32, count: u32): "mbarrier.init.shared::cta.b64 [{barrier}], {count};", in(reg32 barrier count);
    /// Invalidates an mbarrier on which no thread waits. Its memory may then be used for other data.
    pub(in crate::device) [unsafe] invalidate(barrier: u32): "mbarrier.inval.shared::cta.b64 [{barrier}];", in(reg32 barrier);
}

/// Makes the mbarriers that this thread initialized visible to the copy engine, on GPUs that have it.
#[inline(always)]
pub fn init_fence() {
    if cfg!(since = "9.0") {
        ptx!("fence.mbarrier_init.release.cluster;", options(nostack));
    }
}

instructions! {
    /// Makes this thread's stores to shared memory visible to `wgmma` and the copy engine.
    pub fence_proxy_async(): "fence.proxy.async.shared::cta;";
    pub(in crate::device) [unsafe] arrive(barrier: u32): "mbarrier.arrive.shared::cta.b64 _, [{barrier}];", in(reg32 barrier);
    /// Arrives and adds `bytes` to the bytes that the phase expects of the copy engine.
    pub(in crate::device) [unsafe] arrive_expect_tx(barrier: u32, bytes: u32):
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{barrier}], {bytes};", in(reg32 barrier bytes);
    /// Adds `bytes` to the bytes that the phase expects of the copy engine, without an arrival.
    pub(in crate::device) [unsafe] expect_tx(barrier: u32, bytes: u32):
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{barrier}], {bytes};", in(reg32 barrier bytes);
}

/// Returns whether the phase of this parity is complete. From compute capability 9.0 on, it waits for a short time
/// before it returns false.
#[inline(always)]
pub(in crate::device) unsafe fn try_wait(barrier: u32, parity: u32) -> bool {
    // `done` starts as true, so that a loop around this function ends on the host, where `ptx!` is empty.
    let mut done = 1u32;
    if !cfg!(since = "9.0") {
        ptx!(
            "{{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [{b}], {parity}; selp.u32 {done}, 1, 0, p; }}",
            b = in(reg32) barrier, parity = in(reg32) parity, done = inout(reg32) done, options(nostack)
        );
        return done != 0;
    }
    ptx!(
        "{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [{b}], {parity}; selp.u32 {done}, 1, 0, p; }}",
        b = in(reg32) barrier, parity = in(reg32) parity, done = inout(reg32) done, options(nostack)
    );
    done != 0
}

/// Waits until the phase of this parity is complete.
#[inline(always)]
pub(in crate::device) unsafe fn wait(barrier: u32, parity: u32) {
    // SAFETY: promised by the caller.
    while !unsafe { try_wait(barrier, parity) } {}
}

instructions! {
    /// `bar.sync`: waits at named barrier `id` for `threads` threads.
    pub sync_named(id: u32, threads: u32): "bar.sync {id}, {threads};", in(reg32 id threads);
    /// `barrier.sync`: [`sync_named`] for warps that call it from different instructions, such as producers and
    /// consumers. compute-sanitizer reports `bar.sync` there.
    pub sync_named_unaligned(id: u32, threads: u32): "barrier.sync {id}, {threads};", in(reg32 id threads);
    /// Arrives at named barrier `id` of `threads` threads without waiting.
    pub arrive_named(id: u32, threads: u32): "bar.arrive {id}, {threads};", in(reg32 id threads);
}

/// Raises the register limit of this warpgroup to `COUNT` per thread.
#[inline(always)]
pub fn setmaxnreg_inc<const COUNT: u32>() {
    ptx!("setmaxnreg.inc.sync.aligned.u32 {n};", n = const COUNT, options(nostack));
}

/// Lowers the register limit of this warpgroup to `COUNT` per thread and releases the others.
#[inline(always)]
pub fn setmaxnreg_dec<const COUNT: u32>() {
    ptx!("setmaxnreg.dec.sync.aligned.u32 {n};", n = const COUNT, options(nostack));
}
