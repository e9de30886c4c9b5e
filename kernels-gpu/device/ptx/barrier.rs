//! Barriers in shared memory (`mbarrier`), named barriers and the register split of a warp-specialised kernel.

use super::ptx;

/// Makes a barrier that `count` arrivals complete.
#[inline(always)]
pub fn init(barrier: u32, count: u32) {
    ptx!("mbarrier.init.shared::cta.b64 [{b}], {n};", b = in(reg32) barrier, n = in(reg32) count, options(nostack));
}

/// Ends a barrier that nobody waits for: its place may be another one's, or be made again.
#[inline(always)]
pub fn end(barrier: u32) {
    ptx!("mbarrier.inval.shared::cta.b64 [{b}];", b = in(reg32) barrier, options(nostack));
}

/// Makes this thread's [`init`]s visible to the copy engine, where there is one.
#[inline(always)]
pub fn init_fence() {
    if !cfg!(arch = "sm_80") {
        ptx!("fence.mbarrier_init.release.cluster;", options(nostack));
    }
}

/// Makes this thread's writes to shared memory visible to `wgmma` and the copy engine.
#[inline(always)]
pub fn fence_copies() {
    ptx!("fence.proxy.async.shared::cta;", options(nostack));
}

/// Arrives.
#[inline(always)]
pub fn arrive(barrier: u32) {
    ptx!("mbarrier.arrive.shared::cta.b64 _, [{b}];", b = in(reg32) barrier, options(nostack));
}

/// Arrives, and expects `bytes` more from the copy engine in this phase.
#[inline(always)]
pub fn arrive_expect(barrier: u32, bytes: u32) {
    ptx!(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{b}], {n};",
        b = in(reg32) barrier, n = in(reg32) bytes, options(nostack)
    );
}

/// Expects `bytes` more from the copy engine in this phase, without arriving.
#[inline(always)]
pub fn expect(barrier: u32, bytes: u32) {
    ptx!(
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{b}], {n};",
        b = in(reg32) barrier, n = in(reg32) bytes, options(nostack)
    );
}

/// Is the phase of this parity complete? Waits a moment before it says no, where the GPU can.
#[inline(always)]
pub fn try_wait(barrier: u32, parity: u32) -> bool {
    // On the host, where nothing runs, a loop around this still ends.
    let mut done = 1u32;
    if cfg!(arch = "sm_80") {
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

/// Barrier number `id` over `threads` threads.
#[inline(always)]
pub fn sync_named(id: u32, threads: u32) {
    ptx!("bar.sync {id}, {n};", id = in(reg32) id, n = in(reg32) threads, options(nostack));
}

/// Counts this thread in at barrier number `id` over `threads` threads, and goes on.
#[inline(always)]
pub fn arrive_named(id: u32, threads: u32) {
    ptx!("bar.arrive {id}, {n};", id = in(reg32) id, n = in(reg32) threads, options(nostack));
}

/// Takes registers up to `COUNT` a thread for this warpgroup.
#[inline(always)]
pub fn registers_up<const COUNT: u32>() {
    ptx!("setmaxnreg.inc.sync.aligned.u32 {n};", n = const COUNT, options(nostack));
}

/// Gives registers of this warpgroup back, down to `COUNT` a thread.
#[inline(always)]
pub fn registers_down<const COUNT: u32>() {
    ptx!("setmaxnreg.dec.sync.aligned.u32 {n};", n = const COUNT, options(nostack));
}
