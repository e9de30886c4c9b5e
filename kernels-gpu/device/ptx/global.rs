//! Global memory: predicated read-only loads, stores, and the release/acquire pair of a carry.

use super::ptx;

/// 16 bytes through the read-only path, zero where `ok` is false. `addr`: 16-byte aligned, global.
#[inline(always)]
pub fn load_v4(addr: u64, ok: bool) -> [u32; 4] {
    let (mut a, mut b, mut c, mut d) = (0u32, 0u32, 0u32, 0u32);
    ptx!(
        "{{ .reg .pred p; setp.ne.u32 p, {ok}, 0; @p ld.global.nc.v4.u32 {{{a}, {b}, {c}, {d}}}, [{addr}]; }}",
        a = inout(reg32) a, b = inout(reg32) b, c = inout(reg32) c, d = inout(reg32) d,
        addr = in(reg64) addr, ok = in(reg32) ok as u32,
        options(pure, readonly, nostack)
    );
    [a, b, c, d]
}

/// As [`load_v4`], for data read once: it does not displace B in L1.
#[inline(always)]
pub fn load_v4_stream(addr: u64, ok: bool) -> [u32; 4] {
    let (mut a, mut b, mut c, mut d) = (0u32, 0u32, 0u32, 0u32);
    ptx!(
        "{{ .reg .pred p; setp.ne.u32 p, {ok}, 0; @p ld.global.nc.L1::no_allocate.v4.u32 {{{a}, {b}, {c}, {d}}}, [{addr}]; }}",
        a = inout(reg32) a, b = inout(reg32) b, c = inout(reg32) c, d = inout(reg32) d,
        addr = in(reg64) addr, ok = in(reg32) ok as u32,
        options(pure, readonly, nostack)
    );
    [a, b, c, d]
}

/// 4 bytes, zero where `ok` is false.
#[inline(always)]
pub fn load_b32(addr: u64, ok: bool) -> u32 {
    let mut a = 0u32;
    ptx!(
        "{{ .reg .pred p; setp.ne.u32 p, {ok}, 0; @p ld.global.nc.u32 {a}, [{addr}]; }}",
        a = inout(reg32) a, addr = in(reg64) addr, ok = in(reg32) ok as u32,
        options(pure, readonly, nostack)
    );
    a
}

/// 2 bytes in the low half, zero where `ok` is false.
#[inline(always)]
pub fn load_b16(addr: u64, ok: bool) -> u32 {
    let mut a = 0u32;
    ptx!(
        "{{ .reg .pred p; setp.ne.u32 p, {ok}, 0; @p ld.global.nc.u16 {a}, [{addr}]; }}",
        a = inout(reg32) a, addr = in(reg64) addr, ok = in(reg32) ok as u32,
        options(pure, readonly, nostack)
    );
    a
}

/// 8 bytes as two words, zero where `ok` is false. `addr`: 8-byte aligned.
#[inline(always)]
pub fn load_v2(addr: u64, ok: bool) -> [u32; 2] {
    let (mut a, mut b) = (0u32, 0u32);
    ptx!(
        "{{ .reg .pred p; setp.ne.u32 p, {ok}, 0; @p ld.global.nc.v2.u32 {{{a}, {b}}}, [{addr}]; }}",
        a = inout(reg32) a, b = inout(reg32) b, addr = in(reg64) addr, ok = in(reg32) ok as u32,
        options(pure, readonly, nostack)
    );
    [a, b]
}

/// 4 bytes that other thread blocks may have written in this launch: past L1.
#[inline(always)]
pub fn load_b32_fresh(addr: u64) -> u32 {
    let mut a = 0u32;
    ptx!("ld.global.cg.u32 {a}, [{addr}];", a = inout(reg32) a, addr = in(reg64) addr, options(nostack));
    a
}

/// 8 bytes that other thread blocks may have written in this launch: past L1.
#[inline(always)]
pub fn load_v2_fresh(addr: u64) -> [u32; 2] {
    let (mut a, mut b) = (0u32, 0u32);
    ptx!(
        "ld.global.cg.v2.u32 {{{a}, {b}}}, [{addr}];",
        a = inout(reg32) a, b = inout(reg32) b, addr = in(reg64) addr,
        options(nostack)
    );
    [a, b]
}

/// 16 bytes that other thread blocks may have written in this launch: past L1.
#[inline(always)]
pub fn load_v4_fresh(addr: u64) -> [u32; 4] {
    let (mut a, mut b, mut c, mut d) = (0u32, 0u32, 0u32, 0u32);
    ptx!(
        "ld.global.cg.v4.u32 {{{a}, {b}, {c}, {d}}}, [{addr}];",
        a = inout(reg32) a, b = inout(reg32) b, c = inout(reg32) c, d = inout(reg32) d, addr = in(reg64) addr,
        options(nostack)
    );
    [a, b, c, d]
}

/// Stores 16 bytes. `addr`: 16-byte aligned.
#[inline(always)]
pub fn store_v4(addr: u64, v: [u32; 4]) {
    ptx!(
        "st.global.v4.u32 [{addr}], {{{a}, {b}, {c}, {d}}};",
        addr = in(reg64) addr, a = in(reg32) v[0], b = in(reg32) v[1], c = in(reg32) v[2], d = in(reg32) v[3],
        options(nostack)
    );
}

/// Stores 8 bytes. `addr`: 8-byte aligned.
#[inline(always)]
pub fn store_v2(addr: u64, v: [u32; 2]) {
    ptx!(
        "st.global.v2.u32 [{addr}], {{{a}, {b}}};",
        addr = in(reg64) addr, a = in(reg32) v[0], b = in(reg32) v[1],
        options(nostack)
    );
}

/// Stores 4 bytes.
#[inline(always)]
pub fn store_b32(addr: u64, v: u32) {
    ptx!("st.global.u32 [{addr}], {v};", addr = in(reg64) addr, v = in(reg32) v, options(nostack));
}

/// Stores the low 2 bytes.
#[inline(always)]
pub fn store_b16(addr: u64, v: u32) {
    ptx!("st.global.u16 [{addr}], {v};", addr = in(reg64) addr, v = in(reg32) v, options(nostack));
}

/// Orders this thread's earlier writes before its later ones for the whole GPU, and likewise reads.
#[inline(always)]
pub fn fence_gpu() {
    ptx!("fence.acq_rel.gpu;", options(nostack));
}

/// Adds to a counter and returns what it held. Atomic over the GPU.
#[inline(always)]
pub fn atomic_add(addr: u64, v: u32) -> u32 {
    let mut old = 0u32;
    ptx!(
        "atom.acq_rel.gpu.global.add.u32 {old}, [{addr}], {v};",
        old = inout(reg32) old, addr = in(reg64) addr, v = in(reg32) v,
        options(nostack)
    );
    old
}
