//! What gathers by index need beside `copy` and `barrier`.

use super::instructions;

instructions! {
    /// Arrives at the barrier once all copies that this thread has started have ended; the barrier counts this thread.
    pub cp_async_arrive(barrier: u32):
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [{barrier}];", in(reg32 barrier);
    /// Copies 16 bytes to shared `to`, or zeros where `valid` is not: a predicate, where a size that is not known costs
    /// a dozen instructions. Both addresses 16-byte aligned; `from` global.
    pub cp_async_4_or_zero(to: u32, from: u64, valid: bool):
        "{{ .reg .pred p; setp.eq.u32 p, {valid}, 0; cp.async.cg.shared.global [{to}], [{from}], 16, p; }}",
        in(reg32 to, reg64 from; bool valid);
    /// Replaces a word that holds `expected` by `new` and returns what it held. Atomic over the GPU, without order.
    pub atom_cas(addr: u64, expected: u32, new: u32) -> u32 = old, out(reg32 old = 0):
        "atom.relaxed.gpu.global.cas.b32 {old}, [{addr}], {expected}, {new};", in(reg64 addr, reg32 expected new);
}
