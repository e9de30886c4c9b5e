//! Global memory: predicated loads, stores, atomics, and the release/acquire pair of the split-K fix-up. A load returns
//! zeros if `ok` is false. Bodies use them through [`Global`](crate::device::memory::Global).

use super::{instructions, ptx};

macro_rules! load_one {
    ($($(#[$doc:meta])* $name:ident = $op:literal ($($option:ident),+);)+) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub(in crate::device) unsafe fn $name(addr: u64, ok: bool) -> u32 {
            let mut a = 0u32;
            ptx!(
                concat!("{{ .reg .pred p; setp.ne.u32 p, {ok}, 0; @p ", $op, " {a}, [{addr}]; }}"),
                a = inout(reg32) a, addr = in(reg64) addr, ok = in(reg32) ok as u32,
                options($($option),+)
            );
            a
        }
    )+};
}

macro_rules! load_two {
    ($($(#[$doc:meta])* $name:ident = $op:literal ($($option:ident),+);)+) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub(in crate::device) unsafe fn $name(addr: u64, ok: bool) -> [u32; 2] {
            let (mut a, mut b) = (0u32, 0u32);
            ptx!(
                concat!("{{ .reg .pred p; setp.ne.u32 p, {ok}, 0; @p ", $op, " {{{a}, {b}}}, [{addr}]; }}"),
                a = inout(reg32) a, b = inout(reg32) b, addr = in(reg64) addr, ok = in(reg32) ok as u32,
                options($($option),+)
            );
            [a, b]
        }
    )+};
}

macro_rules! load_four {
    ($($(#[$doc:meta])* $name:ident = $op:literal ($($option:ident),+);)+) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub(in crate::device) unsafe fn $name(addr: u64, ok: bool) -> [u32; 4] {
            let (mut a, mut b, mut c, mut d) = (0u32, 0u32, 0u32, 0u32);
            ptx!(
                concat!("{{ .reg .pred p; setp.ne.u32 p, {ok}, 0; @p ", $op, " {{{a}, {b}, {c}, {d}}}, [{addr}]; }}"),
                a = inout(reg32) a, b = inout(reg32) b, c = inout(reg32) c, d = inout(reg32) d,
                addr = in(reg64) addr, ok = in(reg32) ok as u32,
                options($($option),+)
            );
            [a, b, c, d]
        }
    )+};
}

// `nc` and `pure` require memory that no running kernel writes: neither this one, nor the preceding launch if it may
// still run. ptxas may move such a load before the wait for that launch. Operands that it writes need one of the other
// forms.
load_one! {
    ld_nc_b32 = "ld.global.nc.u32" (pure, readonly, nostack);
    /// Loads 2 bytes into the low half.
    ld_nc_b16 = "ld.global.nc.u16" (pure, readonly, nostack);
    ld_nc_b8 = "ld.global.nc.u8" (pure, readonly, nostack);
    /// Loads 1 byte that this thread may write later into the lowest byte.
    ld_global_b8 = "ld.global.u8" (nostack);
    /// Loads 4 bytes that this thread may write later.
    ld_global_b32 = "ld.global.u32" (nostack);
    /// Loads 2 bytes that this thread may write later into the low half.
    ld_global_b16 = "ld.global.u16" (nostack);
    /// Loads 4 bytes that other thread blocks may have written in this launch; bypasses L1.
    ld_cg_b32 = "ld.global.cg.u32" (nostack);
    /// Loads 2 bytes that other thread blocks or the preceding launch may have written into the low half; bypasses L1.
    ld_cg_b16 = "ld.global.cg.u16" (nostack);
    /// Loads 1 byte that the preceding launch may have written into the lowest byte; bypasses L1.
    ld_cg_b8 = "ld.global.cg.u8" (nostack);
}

load_two! {
    ld_nc_v2 = "ld.global.nc.v2.u32" (pure, readonly, nostack);
    /// Loads 8 bytes that this thread may write later.
    ld_global_v2 = "ld.global.v2.u32" (nostack);
    /// Loads 8 bytes that are read once. Writes of the preceding kernel are visible after the wait for it.
    ld_no_allocate_v2 = "ld.global.L1::no_allocate.v2.u32" (nostack);
    /// Loads 8 bytes that other thread blocks may have written in this launch; bypasses L1.
    ld_cg_v2 = "ld.global.cg.v2.u32" (nostack);
}

load_four! {
    ld_nc_v4 = "ld.global.nc.v4.u32" (pure, readonly, nostack);
    /// Loads 16 bytes that are read once; they do not evict B from L1.
    ld_nc_no_allocate_v4 = "ld.global.nc.L1::no_allocate.v4.u32" (pure, readonly, nostack);
    /// Loads 16 bytes that are read once. Writes of the preceding kernel are visible after the wait for it.
    ld_no_allocate_v4 = "ld.global.L1::no_allocate.v4.u32" (nostack);
    /// Loads 16 bytes that this thread may write later.
    ld_global_v4 = "ld.global.v4.u32" (nostack);
    /// Loads 16 bytes that other thread blocks may have written in this launch; bypasses L1.
    ld_cg_v4 = "ld.global.cg.v4.u32" (nostack);
}

/// [`ld_nc_v2`] if `ok`, otherwise the given words. A load in a branch would be copied where the branches join, and the
/// copy would wait for it.
#[inline(always)]
pub(in crate::device) unsafe fn ld_nc_v2_or(
    [mut a, mut b]: [u32; 2],
    addr: u64,
    ok: bool,
) -> [u32; 2] {
    ptx!(
        "{{ .reg .pred p; setp.ne.u32 p, {ok}, 0; @p ld.global.nc.v2.u32 {{{a}, {b}}}, [{addr}]; }}",
        a = inout(reg32) a, b = inout(reg32) b, addr = in(reg64) addr, ok = in(reg32) ok as u32,
        options(pure, readonly, nostack)
    );
    [a, b]
}

macro_rules! load_row {
    ($($(#[$doc:meta])* $name:ident = $op:literal $at:literal, [$($word:ident $i:literal),+];)+) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub(in crate::device) unsafe fn $name(addr: u64, row: u32, rows: u32) -> [u32; 4] {
            $(let mut $word = 0u32;)+
            ptx!(
                concat!("{{ .reg .pred p; setp.lt.u32 p, {row}, {rows}; @p ", $op, " ", $at, ", [{addr}]; }}"),
                $($word = inout(reg32) $word,)+
                addr = in(reg64) addr, row = in(reg32) row, rows = in(reg32) rows, options(nostack)
            );
            let mut all = [0; 4];
            $(all[$i] = $word;)+
            all
        }
    )+};
}

// The comparison is part of the asm text: for a sequence of loads, compilers move all comparisons to the start and run
// out of predicate registers.
load_row! {
    /// [`ld_cg_v4`] if `row < rows`.
    ld_cg_v4_row = "ld.global.cg.v4.u32" "{{{a}, {b}, {c}, {d}}}", [a 0, b 1, c 2, d 3];
    /// [`ld_cg_v2`] if `row < rows`, into the first two words.
    ld_cg_v2_row = "ld.global.cg.v2.u32" "{{{a}, {b}}}", [a 0, b 1];
    /// [`ld_cg_b32`] if `row < rows`, into the first word.
    ld_cg_b32_row = "ld.global.cg.u32" "{a}", [a 0];
    /// [`ld_cg_b16`] if `row < rows`, into the low half of the first word.
    ld_cg_b16_row = "ld.global.cg.u16" "{a}", [a 0];
}

instructions! {
    /// Prefetches the line of 128 bytes at `addr` into L2 if `ok`.
    pub(in crate::device) [unsafe] prefetch_l2(addr: u64, ok: bool):
        "{{ .reg .pred p; setp.ne.u32 p, {ok}, 0; @p prefetch.global.L2 [{addr}]; }}", in(reg64 addr; bool ok);
    /// Stores 16 bytes.
    pub(in crate::device) [unsafe] st_v4(addr: u64, [a, b, c, d]: [u32; 4]):
        "st.global.v4.u32 [{addr}], {{{a}, {b}, {c}, {d}}};", in(reg64 addr, reg32 a b c d);
    /// [`st_v4`] with streaming eviction, for data that is not read again.
    pub(in crate::device) [unsafe] st_cs_v4(addr: u64, [a, b, c, d]: [u32; 4]):
        "st.global.cs.v4.u32 [{addr}], {{{a}, {b}, {c}, {d}}};", in(reg64 addr, reg32 a b c d);
}

/// L2 eviction policy: `evict_last` if `kept`, otherwise `evict_normal`.
#[inline(always)]
pub fn l2_evict_last(kept: bool) -> u64 {
    let (mut last, mut normal) = (0u64, 0u64);
    ptx!("createpolicy.fractional.L2::evict_last.b64 {p}, 1.0;", p = inout(reg64) last, options(pure, nomem, nostack));
    ptx!("createpolicy.fractional.L2::evict_normal.b64 {p}, 1.0;", p = inout(reg64) normal, options(pure, nomem, nostack));
    if kept { last } else { normal }
}

/// L2 eviction policy: `evict_first` if `first`, otherwise `evict_normal`.
#[inline(always)]
pub fn l2_evict_first(first: bool) -> u64 {
    let (mut first_out, mut normal) = (0u64, 0u64);
    ptx!("createpolicy.fractional.L2::evict_first.b64 {p}, 1.0;", p = inout(reg64) first_out, options(pure, nomem, nostack));
    ptx!("createpolicy.fractional.L2::evict_normal.b64 {p}, 1.0;", p = inout(reg64) normal, options(pure, nomem, nostack));
    if first { first_out } else { normal }
}

instructions! {
    /// [`ld_global_v4`] with a policy of [`l2_evict_last`].
    pub(in crate::device) [unsafe] ld_global_v4_with_policy(addr: u64, ok: bool, policy: u64) -> [u32; 4] = [a, b, c, d], out(reg32 a b c d = 0):
        "{{ .reg .pred p; setp.ne.u32 p, {ok}, 0; @p ld.global.L2::cache_hint.v4.u32 {{{a}, {b}, {c}, {d}}}, [{addr}], {policy}; }}",
        in(reg64 addr policy; bool ok);
    /// Stores 8 bytes.
    pub(in crate::device) [unsafe] st_v2(addr: u64, [a, b]: [u32; 2]): "st.global.v2.u32 [{addr}], {{{a}, {b}}};", in(reg64 addr, reg32 a b);
    pub(in crate::device) [unsafe] st_b32(addr: u64, v: u32): "st.global.u32 [{addr}], {v};", in(reg64 addr, reg32 v);
    /// Stores the low 2 bytes.
    pub(in crate::device) [unsafe] st_b16(addr: u64, v: u32): "st.global.u16 [{addr}], {v};", in(reg64 addr, reg32 v);
    /// Stores the lowest byte.
    pub(in crate::device) [unsafe] st_b8(addr: u64, v: u32): "st.global.u8 [{addr}], {v};", in(reg64 addr, reg32 v);
    /// [`st_b32`] if `ok`.
    pub(in crate::device) [unsafe] st_b32_if(addr: u64, v: u32, ok: bool):
        "{{ .reg .pred p; setp.ne.u32 p, {ok}, 0; @p st.global.u32 [{addr}], {v}; }}", in(reg64 addr, reg32 v; bool ok);
    /// [`st_b16`] if `ok`.
    pub(in crate::device) [unsafe] st_b16_if(addr: u64, v: u32, ok: bool):
        "{{ .reg .pred p; setp.ne.u32 p, {ok}, 0; @p st.global.u16 [{addr}], {v}; }}", in(reg64 addr, reg32 v; bool ok);
    /// Fence with acquire and release semantics at GPU scope.
    pub fence_gpu(): "fence.acq_rel.gpu;";
    /// Adds to a word and returns its old value. Atomic over the GPU, with acquire and release semantics.
    pub(in crate::device) [unsafe] atom_add(addr: u64, v: u32) -> u32 = old, out(reg32 old = 0):
        "atom.acq_rel.gpu.global.add.u32 {old}, [{addr}], {v};", in(reg64 addr, reg32 v);
    /// Adds to 8 bytes and returns the old value. Atomic over the GPU, relaxed.
    pub(in crate::device) [unsafe] atom_add_b64(addr: u64, v: u64) -> u64 = old, out(reg64 old = 0):
        "atom.relaxed.gpu.global.add.u64 {old}, [{addr}], {v};", in(reg64 addr v);
    /// Sets bits of a word. Atomic over the GPU, relaxed.
    pub(in crate::device) [unsafe] red_or(addr: u64, bits: u32): "red.relaxed.gpu.global.or.b32 [{addr}], {bits};", in(reg64 addr, reg32 bits);
    /// Loads 8 bytes that other thread blocks write in this launch, in one access.
    pub(in crate::device) [unsafe] ld_relaxed_b64(addr: u64) -> u64 = a, out(reg64 a = 0):
        "ld.relaxed.gpu.global.u64 {a}, [{addr}];", in(reg64 addr);
}

/// Polls word `i` of 8 bytes until its upper half equals `tag` in all but the lowest two bits. A thread block with a
/// lower index writes it in this launch. GPUs start thread blocks in the order of their indices, so the writer is
/// running or done. The number of polls is not limited: if a debugger or another process suspends this launch, it
/// suspends the writer as well, and a count of polls cannot tell that from a fault. `words` is aligned to 8 bytes.
#[allow(named_asm_labels, reason = "PTX keeps labels inside braces apart")]
#[inline(always)]
pub(in crate::device) unsafe fn poll_b64(words: u64, i: u32, tag: u32) -> u64 {
    let mut word = 0u64;
    // Each poll computes the address anew: kept through the loop, it would take two registers.
    ptx!(
        "{{ .reg .pred p; .reg .b32 high; .reg .b64 at;",
        "poll: mad.wide.u32 at, {i}, 8, {words}; ld.relaxed.gpu.global.u64 {word}, [at];",
        "mov.b64 {{_, high}}, {word}; xor.b32 high, high, {tag}; setp.gt.u32 p, high, 3; @p bra poll; }}",
        word = inout(reg64) word, words = in(reg64) words, i = in(reg32) i, tag = in(reg32) tag, options(nostack)
    );
    word
}

instructions! {
    /// Stores 8 bytes that other thread blocks read in this launch, in one access.
    pub(in crate::device) [unsafe] st_relaxed_b64(addr: u64, v: u64): "st.relaxed.gpu.global.u64 [{addr}], {v};", in(reg64 addr v);
    /// Sets a word to the minimum of it and `v`. Atomic over the GPU, relaxed.
    pub(in crate::device) [unsafe] red_min(addr: u64, v: u32): "red.relaxed.gpu.global.min.u32 [{addr}], {v};", in(reg64 addr, reg32 v);
    /// Sets a word to the maximum of it and `v`. Atomic over the GPU, relaxed.
    pub(in crate::device) [unsafe] red_max(addr: u64, v: u32): "red.relaxed.gpu.global.max.u32 [{addr}], {v};", in(reg64 addr, reg32 v);
}

instructions! {
    /// Compare and swap: replaces `expected` by `new` and returns the old value. Atomic over the GPU, relaxed.
    pub(in crate::device) [unsafe] atom_cas(addr: u64, expected: u32, new: u32) -> u32 = old, out(reg32 old = 0):
        "atom.relaxed.gpu.global.cas.b32 {old}, [{addr}], {expected}, {new};", in(reg64 addr, reg32 expected new);
}
