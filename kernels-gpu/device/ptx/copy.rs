//! Asynchronous copies from global into shared memory (`cp.async`), and shared loads and stores.

use super::ptx;

#[cfg(target_arch = "nvptx64")]
core::arch::global_asm!(".extern .shared .align 1024 .b8 shared_arena[];");

/// Shared-space address of the dynamic shared memory.
#[inline(always)]
pub fn arena() -> u32 {
    let mut a = 0u32;
    ptx!("mov.u32 {a}, shared_arena;", a = inout(reg32) a, options(pure, nomem, nostack));
    a
}

/// Copies `bytes` (0 to 16) to shared `to` and fills the rest of 16 bytes with zeros. Both addresses
/// 16-byte aligned; `from` global.
#[inline(always)]
pub fn copy_async_16(to: u32, from: u64, bytes: u32) {
    ptx!(
        "cp.async.cg.shared.global [{to}], [{from}], 16, {bytes};",
        to = in(reg32) to, from = in(reg64) from, bytes = in(reg32) bytes,
        options(nostack)
    );
}

/// Copies 16 bytes to shared `to` where `yes` is not 0: a size that is not known costs a dozen instructions. Both
/// addresses 16-byte aligned; `from` global.
#[inline(always)]
pub fn copy_async_whole(to: u32, from: u64, yes: u32) {
    ptx!(
        "{{ .reg .pred p; setp.ne.u32 p, {yes}, 0; @p cp.async.cg.shared.global [{to}], [{from}], 16; }}",
        to = in(reg32) to, from = in(reg64) from, yes = in(reg32) yes,
        options(nostack)
    );
}

/// Closes a group of copies.
#[inline(always)]
pub fn copy_commit() {
    ptx!("cp.async.commit_group;", options(nostack));
}

/// Waits until at most `PENDING` groups of this thread are under way.
#[inline(always)]
pub fn copy_wait<const PENDING: u32>() {
    ptx!("cp.async.wait_group {n};", n = const PENDING, options(nostack));
}

/// Waits until all copies of this thread have ended.
#[inline(always)]
pub fn copy_wait_all() {
    ptx!("cp.async.wait_all;", options(nostack));
}

/// Stores 16 bytes to shared memory.
#[inline(always)]
pub fn store_shared_v4(to: u32, v: [u32; 4]) {
    ptx!(
        "st.shared.v4.u32 [{to}], {{{a}, {b}, {c}, {d}}};",
        to = in(reg32) to, a = in(reg32) v[0], b = in(reg32) v[1], c = in(reg32) v[2], d = in(reg32) v[3],
        options(nostack)
    );
}

/// Stores 4 bytes to shared memory.
#[inline(always)]
pub fn store_shared_b32(to: u32, v: u32) {
    ptx!("st.shared.u32 [{to}], {v};", to = in(reg32) to, v = in(reg32) v, options(nostack));
}

/// Stores the low 2 bytes to shared memory.
#[inline(always)]
pub fn store_shared_b16(to: u32, v: u32) {
    ptx!("st.shared.u16 [{to}], {v};", to = in(reg32) to, v = in(reg32) v, options(nostack));
}

/// Stores 4 bytes where `yes` is not 0; the place behind them, else the same.
#[inline(always)]
pub fn push_shared_b32(to: u32, v: u32, yes: u32) -> u32 {
    let mut next = to;
    ptx!(
        "{{ .reg .pred p; setp.ne.u32 p, {yes}, 0; @p st.shared.u32 [{to}], {v}; @p add.u32 {to}, {to}, 4; }}",
        to = inout(reg32) next, v = in(reg32) v, yes = in(reg32) yes,
        options(nostack)
    );
    next
}

/// Stores 8 bytes where `yes` is not 0; the place behind them, else the same. `to`: 8-byte aligned.
#[inline(always)]
pub fn push_shared_v2(to: u32, v: [u32; 2], yes: u32) -> u32 {
    let mut next = to;
    ptx!(
        "{{ .reg .pred p; setp.ne.u32 p, {yes}, 0; @p st.shared.v2.u32 [{to}], {{{a}, {b}}}; @p add.u32 {to}, {to}, 8; }}",
        to = inout(reg32) next, a = in(reg32) v[0], b = in(reg32) v[1], yes = in(reg32) yes,
        options(nostack)
    );
    next
}

/// Loads 4 bytes from shared memory.
#[inline(always)]
pub fn load_shared_b32(from: u32) -> u32 {
    let mut a = 0u32;
    ptx!("ld.shared.u32 {a}, [{from}];", a = inout(reg32) a, from = in(reg32) from, options(nostack));
    a
}

/// Loads 2 bytes from shared memory into the low half.
#[inline(always)]
pub fn load_shared_b16(from: u32) -> u32 {
    let mut a = 0u32;
    ptx!("ld.shared.u16 {a}, [{from}];", a = inout(reg32) a, from = in(reg32) from, options(nostack));
    a
}

/// Loads a byte from shared memory.
#[inline(always)]
pub fn load_shared_b8(from: u32) -> u32 {
    let mut a = 0u32;
    ptx!("ld.shared.u8 {a}, [{from}];", a = inout(reg32) a, from = in(reg32) from, options(nostack));
    a
}

/// Stores 8 bytes to shared memory.
#[inline(always)]
pub fn store_shared_v2(to: u32, v: [u32; 2]) {
    ptx!(
        "st.shared.v2.u32 [{to}], {{{a}, {b}}};",
        to = in(reg32) to, a = in(reg32) v[0], b = in(reg32) v[1],
        options(nostack)
    );
}

/// Loads 8 bytes from shared memory.
#[inline(always)]
pub fn load_shared_v2(from: u32) -> [u32; 2] {
    let (mut a, mut b) = (0u32, 0u32);
    ptx!(
        "ld.shared.v2.u32 {{{a}, {b}}}, [{from}];",
        a = inout(reg32) a, b = inout(reg32) b, from = in(reg32) from,
        options(nostack)
    );
    [a, b]
}

/// Loads 16 bytes from shared memory.
#[inline(always)]
pub fn load_shared_v4(from: u32) -> [u32; 4] {
    let (mut a, mut b, mut c, mut d) = (0u32, 0u32, 0u32, 0u32);
    ptx!(
        "ld.shared.v4.u32 {{{a}, {b}, {c}, {d}}}, [{from}];",
        a = inout(reg32) a, b = inout(reg32) b, c = inout(reg32) c, d = inout(reg32) d, from = in(reg32) from,
        options(nostack)
    );
    [a, b, c, d]
}

/// Adds to a word of shared memory. Atomic over the thread block.
#[inline(always)]
pub fn add_shared(to: u32, v: u32) {
    ptx!("red.shared.add.u32 [{to}], {v};", to = in(reg32) to, v = in(reg32) v, options(nostack));
}

/// Adds to a word of shared memory and returns what it held. Atomic over the thread block.
#[inline(always)]
pub fn take_shared(from: u32, v: u32) -> u32 {
    let mut old = 0u32;
    ptx!(
        "atom.shared.add.u32 {old}, [{from}], {v};",
        old = inout(reg32) old, from = in(reg32) from, v = in(reg32) v,
        options(nostack)
    );
    old
}

/// Sets bits of a word of shared memory. Atomic over the thread block.
#[inline(always)]
pub fn set_bits_shared(to: u32, bits: u32) {
    ptx!("red.shared.or.b32 [{to}], {v};", to = in(reg32) to, v = in(reg32) bits, options(nostack));
}

/// Raises a word of shared memory to `v` where it is below. Atomic over the thread block.
#[inline(always)]
pub fn raise_shared(to: u32, v: u32) {
    ptx!("red.shared.max.u32 [{to}], {v};", to = in(reg32) to, v = in(reg32) v, options(nostack));
}
