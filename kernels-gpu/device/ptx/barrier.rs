//! Barriers in shared memory (`mbarrier`), named barriers and the register split of a warp-specialised kernel.

use super::{instructions, ptx};

instructions! {
    /// Makes a barrier that `count` arrivals complete.
    pub init(barrier: u32, count: u32): "mbarrier.init.shared::cta.b64 [{barrier}], {count};", in(reg32 barrier count);
    /// Ends a barrier that nobody waits for: its place may be another one's, or be made again.
    pub invalidate(barrier: u32): "mbarrier.inval.shared::cta.b64 [{barrier}];", in(reg32 barrier);
}

/// Makes this thread's [`init`]s visible to the copy engine, where there is one.
#[inline(always)]
pub fn init_fence() {
    if cfg!(since = "9.0") {
        ptx!("fence.mbarrier_init.release.cluster;", options(nostack));
    }
}

instructions! {
    /// Makes this thread's writes to shared memory visible to `wgmma` and the copy engine.
    pub fence_proxy_async(): "fence.proxy.async.shared::cta;";
    pub arrive(barrier: u32): "mbarrier.arrive.shared::cta.b64 _, [{barrier}];", in(reg32 barrier);
    /// Arrives, and expects `bytes` more from the copy engine in this phase.
    pub arrive_expect_tx(barrier: u32, bytes: u32):
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{barrier}], {bytes};", in(reg32 barrier bytes);
    /// Expects `bytes` more from the copy engine in this phase, without arriving.
    pub expect_tx(barrier: u32, bytes: u32):
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{barrier}], {bytes};", in(reg32 barrier bytes);
}

/// Is the phase of this parity complete? Waits a moment before it says no, where the GPU can.
#[inline(always)]
pub fn try_wait(barrier: u32, parity: u32) -> bool {
    // On the host, where nothing runs, a loop around this still ends.
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

/// Waits for the phase of this parity.
#[inline(always)]
pub fn wait(barrier: u32, parity: u32) {
    while !try_wait(barrier, parity) {}
}

instructions! {
    /// Barrier number `id` over `threads` threads.
    pub sync_named(id: u32, threads: u32): "bar.sync {id}, {threads};", in(reg32 id threads);
    /// The same where warps come from different places of the code, as those of different roles do: compute-sanitizer
    /// wants it said.
    pub sync_named_unaligned(id: u32, threads: u32): "barrier.sync {id}, {threads};", in(reg32 id threads);
    /// Counts this thread in at barrier number `id` over `threads` threads, and goes on.
    pub arrive_named(id: u32, threads: u32): "bar.arrive {id}, {threads};", in(reg32 id threads);
}

/// Takes registers up to `COUNT` a thread for this warpgroup.
#[inline(always)]
pub fn setmaxnreg_inc<const COUNT: u32>() {
    ptx!("setmaxnreg.inc.sync.aligned.u32 {n};", n = const COUNT, options(nostack));
}

/// Gives registers of this warpgroup back, down to `COUNT` a thread.
#[inline(always)]
pub fn setmaxnreg_dec<const COUNT: u32>() {
    ptx!("setmaxnreg.dec.sync.aligned.u32 {n};", n = const COUNT, options(nostack));
}
