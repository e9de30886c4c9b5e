//! Values to places by their bits.

use super::ptx;

/// A lane's fragment of a square of 16 x 16: for each bit of `bits` from `8 * SQUARE` on, in order, the next 16-bit value at
/// shared `from` where it is set, else zero. Two halves make a register, low half first. `one` is 1.
#[inline(always)]
pub fn expand<const SQUARE: u32>(bits: u32, from: u32, one: u32) -> [u32; 4] {
    let (mut a, mut b, mut c, mut d) = (0u32, 0u32, 0u32, 0u32);
    let bits = bits >> (8 * SQUARE);
    // Additions as multiplications by a `one` that ptxas does not know: the integer pipe is what limits all this, and
    // those go to another one.
    ptx!(
        "{{ .reg .pred p<8>; .reg .b32 t<8>; .reg .b32 h<4>; .reg .b32 q;",
        "mov.b32 q, {q}; mov.b32 {a}, 0; mov.b32 {b}, 0; mov.b32 {c}, 0; mov.b32 {d}, 0;",
        "and.b32 t0, {w}, 1; setp.ne.u32 p0, t0, 0; and.b32 t1, {w}, 2; setp.ne.u32 p1, t1, 0;",
        "and.b32 t2, {w}, 4; setp.ne.u32 p2, t2, 0; and.b32 t3, {w}, 8; setp.ne.u32 p3, t3, 0;",
        "and.b32 t4, {w}, 16; setp.ne.u32 p4, t4, 0; and.b32 t5, {w}, 32; setp.ne.u32 p5, t5, 0;",
        "and.b32 t6, {w}, 64; setp.ne.u32 p6, t6, 0; and.b32 t7, {w}, 128; setp.ne.u32 p7, t7, 0;",
        "@p0 ld.shared.u16 {a}, [q]; @p0 mad.lo.u32 q, {one}, 2, q;",
        "@p1 ld.shared.u16 h0, [q]; @p1 mad.lo.u32 q, {one}, 2, q;",
        "@p2 ld.shared.u16 {b}, [q]; @p2 mad.lo.u32 q, {one}, 2, q;",
        "@p3 ld.shared.u16 h1, [q]; @p3 mad.lo.u32 q, {one}, 2, q;",
        "@p4 ld.shared.u16 {c}, [q]; @p4 mad.lo.u32 q, {one}, 2, q;",
        "@p5 ld.shared.u16 h2, [q]; @p5 mad.lo.u32 q, {one}, 2, q;",
        "@p6 ld.shared.u16 {d}, [q]; @p6 mad.lo.u32 q, {one}, 2, q;",
        "@p7 ld.shared.u16 h3, [q];",
        "@p1 prmt.b32 {a}, {a}, h0, 0x5410; @p3 prmt.b32 {b}, {b}, h1, 0x5410;",
        "@p5 prmt.b32 {c}, {c}, h2, 0x5410; @p7 prmt.b32 {d}, {d}, h3, 0x5410; }}",
        a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d,
        w = in(reg32) bits, q = in(reg32) from, one = in(reg32) one,
        options(nostack)
    );
    [a, b, c, d]
}

/// The inclusive sum of `value` over the lanes of a warp up to this one. Every lane must call it together.
#[inline(always)]
pub fn scan(value: u32) -> u32 {
    let mut sum = value;
    ptx!(
        "{{ .reg .pred p; .reg .b32 t;",
        "shfl.sync.up.b32 t|p, {s}, 1, 0, 0xffffffff; @p add.u32 {s}, {s}, t;",
        "shfl.sync.up.b32 t|p, {s}, 2, 0, 0xffffffff; @p add.u32 {s}, {s}, t;",
        "shfl.sync.up.b32 t|p, {s}, 4, 0, 0xffffffff; @p add.u32 {s}, {s}, t;",
        "shfl.sync.up.b32 t|p, {s}, 8, 0, 0xffffffff; @p add.u32 {s}, {s}, t;",
        "shfl.sync.up.b32 t|p, {s}, 16, 0, 0xffffffff; @p add.u32 {s}, {s}, t; }}",
        s = inout(reg32) sum,
        options(nostack)
    );
    sum
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

/// Orders this thread's writes to shared memory before what the Tensor Cores and the copy engine read there.
#[inline(always)]
pub fn fence_async() {
    ptx!("fence.proxy.async.shared::cta;", options(nostack));
}
