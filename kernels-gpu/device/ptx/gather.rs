//! What gathers by index need beside `copy` and `barrier`.

use super::ptx;

/// Arrives at the barrier once all copies that this thread has started have ended; the barrier counts this thread.
#[inline(always)]
pub fn arrive_with_copies(barrier: u32) {
    ptx!("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [{b}];", b = in(reg32) barrier, options(nostack));
}

/// Copies 16 bytes to shared `to`, or zeros where `there` is not: a predicate, where a size that is not known costs a
/// dozen instructions. Both addresses 16-byte aligned; `from` global.
#[inline(always)]
pub fn copy_or_zero(to: u32, from: u64, there: bool) {
    ptx!(
        "{{ .reg .pred p; setp.eq.u32 p, {there}, 0; cp.async.cg.shared.global [{to}], [{from}], 16, p; }}",
        to = in(reg32) to, from = in(reg64) from, there = in(reg32) there as u32,
        options(nostack)
    );
}

/// Replaces a word that holds `expected` by `new` and returns what it held. Atomic over the GPU, without order.
#[inline(always)]
pub fn compare_swap(addr: u64, expected: u32, new: u32) -> u32 {
    let mut old = 0u32;
    ptx!(
        "atom.relaxed.gpu.global.cas.b32 {old}, [{addr}], {expected}, {new};",
        old = inout(reg32) old, addr = in(reg64) addr, expected = in(reg32) expected, new = in(reg32) new,
        options(nostack)
    );
    old
}
