//! Further instructions of gathers by index, in addition to `copy` and `barrier`.

use super::instructions;

instructions! {
    /// Arrives at the mbarrier when all `cp.async` copies of this thread are complete. The arrival is part of the
    /// expected count (`noinc`).
    pub cp_async_arrive(barrier: u32):
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [{barrier}];", in(reg32 barrier);
    /// Copies 16 bytes from global `from` to shared `to`, or zeros if `valid` is false. It uses a predicate, because a
    /// byte count that is not a constant costs a dozen instructions. Both addresses are aligned to 16 bytes.
    pub cp_async_16_or_zero(to: u32, from: u64, valid: bool):
        "{{ .reg .pred p; setp.eq.u32 p, {valid}, 0; cp.async.cg.shared.global [{to}], [{from}], 16, p; }}",
        in(reg32 to, reg64 from; bool valid);
    /// Compare and swap: replaces `expected` by `new` and returns the old value. Atomic over the GPU, relaxed.
    pub atom_cas(addr: u64, expected: u32, new: u32) -> u32 = old, out(reg32 old = 0):
        "atom.relaxed.gpu.global.cas.b32 {old}, [{addr}], {expected}, {new};", in(reg64 addr, reg32 expected new);
}
