//! Asynchronous copies from global to shared memory (`cp.async`), and loads, stores and atomics of shared memory.

use super::{instructions, ptx};

#[cfg(target_arch = "nvptx64")]
core::arch::global_asm!(".extern .shared .align 1024 .b8 shared_arena[];");

instructions! {
    /// Address of dynamic shared memory in the shared state space.
    pub(in crate::device) dynamic_shared() -> u32 = a, out(reg32 a = 0): "mov.u32 {a}, shared_arena;", options(pure, nomem);
    /// Copies `bytes` (0 to 16) from global `from` to shared `to` and fills the rest of 16 bytes with zeros. Both
    /// addresses are aligned to 16 bytes.
    pub(in crate::device) [unsafe] cp_async_16(to: u32, from: u64, bytes: u32):
        "cp.async.cg.shared.global [{to}], [{from}], 16, {bytes};", in(reg32 to, reg64 from, reg32 bytes);
    /// Copies 16 bytes from global `from` to shared `to` if `yes` is not 0. A byte count that is not a constant would
    /// cost a dozen instructions. Both addresses are aligned to 16 bytes.
    pub(in crate::device) [unsafe] cp_async_16_if(to: u32, from: u64, yes: u32):
        "{{ .reg .pred p; setp.ne.u32 p, {yes}, 0; @p cp.async.cg.shared.global [{to}], [{from}], 16; }}",
        in(reg32 to, reg64 from, reg32 yes);
    /// Copies 4 bytes from global `from` to shared `to`, both aligned to 4 bytes.
    pub(in crate::device) [unsafe] cp_async_4(to: u32, from: u64): "cp.async.ca.shared.global [{to}], [{from}], 4;", in(reg32 to, reg64 from);
    /// Commits a group of copies.
    pub cp_async_commit(): "cp.async.commit_group;";
    /// Arrives at the mbarrier when all `cp.async` copies of this thread are complete. The arrival is part of the
    /// expected count (`noinc`).
    pub(in crate::device) [unsafe] cp_async_arrive(barrier: u32):
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [{barrier}];", in(reg32 barrier);
    /// Copies 16 bytes from global `from` to shared `to`, or zeros if `valid` is false. It uses a predicate, because a
    /// byte count that is not a constant costs a dozen instructions. Both addresses are aligned to 16 bytes.
    pub(in crate::device) [unsafe] cp_async_16_or_zero(to: u32, from: u64, valid: bool):
        "{{ .reg .pred p; setp.eq.u32 p, {valid}, 0; cp.async.cg.shared.global [{to}], [{from}], 16, p; }}",
        in(reg32 to, reg64 from; bool valid);
}

/// Waits until at most `PENDING` groups of this thread are pending.
#[inline(always)]
pub fn cp_async_wait<const PENDING: u32>() {
    ptx!("cp.async.wait_group {n};", n = const PENDING, options(nostack));
}

instructions! {
    /// Waits until all copies of this thread are complete.
    pub cp_async_wait_all(): "cp.async.wait_all;";
    pub(in crate::device) [unsafe] st_shared_v4(to: u32, [a, b, c, d]: [u32; 4]):
        "st.shared.v4.u32 [{to}], {{{a}, {b}, {c}, {d}}};", in(reg32 to a b c d);
    pub(in crate::device) [unsafe] st_shared_b32(to: u32, v: u32): "st.shared.u32 [{to}], {v};", in(reg32 to v);
    /// Stores the low byte to shared memory.
    pub(in crate::device) [unsafe] st_shared_b8(to: u32, v: u32): "st.shared.u8 [{to}], {v};", in(reg32 to v);
    /// Stores the low 2 bytes to shared memory.
    pub(in crate::device) [unsafe] st_shared_b16(to: u32, v: u32): "st.shared.u16 [{to}], {v};", in(reg32 to v);
    /// Stores 4 bytes to shared `to` and returns `to + 4` if `yes` is not 0; otherwise returns `to`.
    pub(in crate::device) [unsafe] st_shared_b32_advance(to: u32, v: u32, yes: u32) -> u32 = next, out(reg32 next = to):
        "{{ .reg .pred p; setp.ne.u32 p, {yes}, 0; @p st.shared.u32 [{next}], {v}; @p add.u32 {next}, {next}, 4; }}",
        in(reg32 v yes);
    /// Stores 8 bytes to shared `to`, aligned to 8 bytes, and returns `to + 8` if `yes` is not 0; otherwise returns
    /// `to`.
    pub(in crate::device) [unsafe] st_shared_v2_advance(to: u32, [a, b]: [u32; 2], yes: u32) -> u32 = next, out(reg32 next = to):
        "{{ .reg .pred p; setp.ne.u32 p, {yes}, 0; @p st.shared.v2.u32 [{next}], {{{a}, {b}}}; @p add.u32 {next}, {next}, 8; }}",
        in(reg32 a b yes);
    pub(in crate::device) [unsafe] ld_shared_b32(from: u32) -> u32 = a, out(reg32 a = 0): "ld.shared.u32 {a}, [{from}];", in(reg32 from);
    /// Loads a word at every call: ptxas does not use the register of an earlier load again.
    pub(in crate::device) [unsafe] ld_volatile_shared_b32(from: u32) -> u32 = a, out(reg32 a = 0):
        "ld.volatile.shared.u32 {a}, [{from}];", in(reg32 from);
    /// Loads 2 bytes from shared memory into the low half.
    pub(in crate::device) [unsafe] ld_shared_b16(from: u32) -> u32 = a, out(reg32 a = 0): "ld.shared.u16 {a}, [{from}];", in(reg32 from);
    pub(in crate::device) [unsafe] ld_shared_b8(from: u32) -> u32 = a, out(reg32 a = 0): "ld.shared.u8 {a}, [{from}];", in(reg32 from);
    pub(in crate::device) [unsafe] st_shared_v2(to: u32, [a, b]: [u32; 2]): "st.shared.v2.u32 [{to}], {{{a}, {b}}};", in(reg32 to a b);
    pub(in crate::device) [unsafe] ld_shared_v2(from: u32) -> [u32; 2] = [a, b], out(reg32 a b = 0):
        "ld.shared.v2.u32 {{{a}, {b}}}, [{from}];", in(reg32 from);
    pub(in crate::device) [unsafe] ld_shared_v4(from: u32) -> [u32; 4] = [a, b, c, d], out(reg32 a b c d = 0):
        "ld.shared.v4.u32 {{{a}, {b}, {c}, {d}}}, [{from}];", in(reg32 from);
    /// Adds to a word of shared memory. Atomic over the thread block.
    pub(in crate::device) [unsafe] red_shared_add(to: u32, v: u32): "red.shared.add.u32 [{to}], {v};", in(reg32 to v);
    /// Adds to a word of shared memory and returns its old value. Atomic over the thread block.
    pub(in crate::device) [unsafe] atom_shared_add(from: u32, v: u32) -> u32 = old, out(reg32 old = 0):
        "atom.shared.add.u32 {old}, [{from}], {v};", in(reg32 from v);
    /// Sets bits of a word of shared memory. Atomic over the thread block.
    pub(in crate::device) [unsafe] red_shared_or(to: u32, bits: u32): "red.shared.or.b32 [{to}], {bits};", in(reg32 to bits);
    /// Sets a word of shared memory to the maximum of it and `v`. Atomic over the thread block.
    pub(in crate::device) [unsafe] red_shared_max(to: u32, v: u32): "red.shared.max.u32 [{to}], {v};", in(reg32 to v);
}
