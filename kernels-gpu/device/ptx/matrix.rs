//! `ldmatrix`, `mma.sync` and the conversions around them. Fragment layouts: `crate::frag`.

use super::{copy, instructions, ptx, warp};
use crate::device::gpu;

instructions! {
    /// Loads four 8 x 8 matrices of 16-bit elements. Lanes 8r..8r+8 pass the addresses of the rows of matrix r.
    pub(in crate::device) [unsafe] ldmatrix_x4(from: u32) -> [u32; 4] = [a, b, c, d], out(reg32 a b c d = 0):
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{a}, {b}, {c}, {d}}}, [{from}];", in(reg32 from);
    /// [`ldmatrix_x4`]; zeros if `valid` is false. `valid` must be the same in all lanes.
    pub(in crate::device) [unsafe] ldmatrix_x4_if(from: u32, valid: bool) -> [u32; 4] = [a, b, c, d], out(reg32 a b c d = 0):
        "{{ .reg .pred p; setp.ne.u32 p, {valid}, 0; @p ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{a}, {b}, {c}, {d}}}, [{from}]; }}",
        in(reg32 from; bool valid);
    /// [`ldmatrix_x4`] with each matrix transposed.
    pub(in crate::device) [unsafe] ldmatrix_x4_trans(from: u32) -> [u32; 4] = [a, b, c, d], out(reg32 a b c d = 0):
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{a}, {b}, {c}, {d}}}, [{from}];", in(reg32 from);
    /// [`ldmatrix_x4_trans`]; zeros if `valid` is false. `valid` must be the same in all lanes.
    pub(in crate::device) [unsafe] ldmatrix_x4_trans_if(from: u32, valid: bool) -> [u32; 4] = [a, b, c, d], out(reg32 a b c d = 0):
        "{{ .reg .pred p; setp.ne.u32 p, {valid}, 0; @p ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{a}, {b}, {c}, {d}}}, [{from}]; }}",
        in(reg32 from; bool valid);
}

macro_rules! mma {
    ($(#[$doc:meta])* $name:ident, $text:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(d: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
            let [mut d0, mut d1, mut d2, mut d3] = *d;
            ptx!(
                concat!($text, " {{{d0}, {d1}, {d2}, {d3}}}, {{{a0}, {a1}, {a2}, {a3}}}, {{{b0}, {b1}}}, {{{d0}, {d1}, {d2}, {d3}}};"),
                d0 = inout(reg32) d0, d1 = inout(reg32) d1, d2 = inout(reg32) d2, d3 = inout(reg32) d3,
                a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                b0 = in(reg32) b[0], b1 = in(reg32) b[1],
                options(pure, nomem, nostack)
            );
            *d = [d0, d1, d2, d3];
        }
    };
}

mma! {
    /// D += A B, m16n8k16, f16 operands, f32 accumulators.
    mma_f16, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
}
mma! {
    /// D += A B, m16n8k16, bf16 operands, f32 accumulators.
    mma_bf16, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
}
mma! {
    /// D += A B, m16n8k8, TF32 operands, f32 accumulators.
    mma_tf32, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
}
mma! {
    /// D += A B, m16n8k32, e4m3 operands, f32 accumulators. Compute capability 8.9, PTX 8.4.
    mma_e4m3, "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"
}
mma! {
    /// D += A B, m16n8k32, e5m2 operands, f32 accumulators. Compute capability 8.9, PTX 8.4.
    mma_e5m2, "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32"
}

/// D += A B, m16n8k16, 8-bit integers, i32 accumulators.
#[inline(always)]
pub fn mma_s8(d: &mut [u32; 4], a: [u32; 2], b: u32) {
    let [mut d0, mut d1, mut d2, mut d3] = *d;
    ptx!(
        "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {{{d0}, {d1}, {d2}, {d3}}}, {{{a0}, {a1}}}, {{{b}}}, {{{d0}, {d1}, {d2}, {d3}}};",
        d0 = inout(reg32) d0, d1 = inout(reg32) d1, d2 = inout(reg32) d2, d3 = inout(reg32) d3,
        a0 = in(reg32) a[0], a1 = in(reg32) a[1], b = in(reg32) b,
        options(pure, nomem, nostack)
    );
    *d = [d0, d1, d2, d3];
}

/// D += A B, m16n8k32, 8-bit integers, i32 accumulators.
#[inline(always)]
pub fn mma_s8_k32(d: &mut [u32; 4], a: [u32; 4], b: [u32; 2]) {
    let [mut d0, mut d1, mut d2, mut d3] = *d;
    ptx!(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {{{d0}, {d1}, {d2}, {d3}}}, {{{a0}, {a1}, {a2}, {a3}}}, {{{b0}, {b1}}}, {{{d0}, {d1}, {d2}, {d3}}};",
        d0 = inout(reg32) d0, d1 = inout(reg32) d1, d2 = inout(reg32) d2, d3 = inout(reg32) d3,
        a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
        b0 = in(reg32) b[0], b1 = in(reg32) b[1],
        options(pure, nomem, nostack)
    );
    *d = [d0, d1, d2, d3];
}

macro_rules! mma_sparse {
    ($(#[$doc:meta])* $name:ident, $text:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name<const SELECTOR: i32>(d: &mut [f32; 4], a: [u32; 4], b: [u32; 4], meta: u32) {
            let [mut d0, mut d1, mut d2, mut d3] = *d;
            ptx!(
                concat!($text, " {{{d0}, {d1}, {d2}, {d3}}}, {{{a0}, {a1}, {a2}, {a3}}}, {{{b0}, {b1}, {b2}, {b3}}}, {{{d0}, {d1}, {d2}, {d3}}}, {meta}, {s};"),
                d0 = inout(reg32) d0, d1 = inout(reg32) d1, d2 = inout(reg32) d2, d3 = inout(reg32) d3,
                a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                b0 = in(reg32) b[0], b1 = in(reg32) b[1], b2 = in(reg32) b[2], b3 = in(reg32) b[3],
                meta = in(reg32) meta, s = const SELECTOR,
                options(pure, nomem, nostack)
            );
            *d = [d0, d1, d2, d3];
        }
    };
}

mma_sparse! {
    /// `D += A B`, m16n8k32, f16, of A two of four along k. Metadata as of `wgmma`: `crate::frag::metadata`. Its places
    /// ascend (`ordered_metadata`). Without this statement ptxas for Blackwell sorts them for each product.
    mma_sparse_f16, "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32"
}
mma_sparse! {
    /// `D += A B`, m16n8k32, bf16, of A two of four along k.
    mma_sparse_bf16, "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32"
}
mma_sparse! {
    /// `D += A B`, m16n8k64, 8-bit integers, of A two of four along k. Accumulators are i32 in these registers; the
    /// selector is 0. Metadata: `crate::frag::metadata_narrow`.
    mma_sparse_s8, "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.s32.s8.s8.s32"
}

instructions! {
    /// No instruction. The compiler keeps the registers alive up to here.
    pub keep_alive([a, b, c, d]: [u32; 4]): "// {a} {b} {c} {d}", in(reg32 a b c d);
    /// Rounds f32 to TF32, to nearest, ties away from zero.
    pub cvt_rna_tf32(x: u32) -> u32 = y, out(reg32 y = 0):
        "cvt.rna.tf32.f32 {y}, {x};", in(reg32 x), options(pure, nomem);
    /// Converts the f16 in the low half of `x` to f32.
    pub f32_from_f16(x: u32) -> f32 = y, out(reg32 y = 0f32):
        "{{ .reg .b16 h; cvt.u16.u32 h, {x}; cvt.f32.f16 {y}, h; }}", in(reg32 x), options(pure, nomem);
    /// Products of two pairs of f16, each rounded.
    pub mul_f16x2(a: u32, b: u32) -> u32 = y, out(reg32 y = 0):
        "mul.rn.f16x2 {y}, {a}, {b};", in(reg32 a b), options(pure, nomem);
    /// `a * b + c` of pairs of f16, each rounded once.
    pub fma_f16x2(a: u32, b: u32, c: u32) -> u32 = d, out(reg32 d = c):
        "fma.rn.f16x2 {d}, {a}, {b}, {d};", in(reg32 a b), options(pure, nomem);
    /// `lo` and `hi` rounded to nearest even, packed.
    pub f16x2_from_f32(lo: f32, hi: f32) -> u32 = y, out(reg32 y = 0):
        "cvt.rn.f16x2.f32 {y}, {hi}, {lo};", in(reg32 lo hi), options(pure, nomem);
    /// `lo` and `hi` rounded to nearest even, packed.
    pub bf16x2_from_f32(lo: f32, hi: f32) -> u32 = y, out(reg32 y = 0):
        "cvt.rn.bf16x2.f32 {y}, {hi}, {lo};", in(reg32 lo hi), options(pure, nomem);
    /// Byte permutation: selects four of the eight bytes of `a` (0 to 3) and `b` (4 to 7) by the hexadecimal digits of
    /// `which`, lowest first.
    pub prmt(a: u32, b: u32, which: u32) -> u32 = y, out(reg32 y = 0):
        "prmt.b32 {y}, {a}, {b}, {which};", in(reg32 a b which), options(pure, nomem);
    /// `a * b + c`, rounded once.
    pub fma_f32(a: f32, b: f32, c: f32) -> f32 = d, out(reg32 d = c):
        "fma.rn.f32 {d}, {a}, {b}, {d};", in(reg32 a b), options(pure, nomem);
    /// `a * b + c`, rounded once.
    pub fma_f64(a: f64, b: f64, c: f64) -> f64 = d, out(reg64 d = c):
        "fma.rn.f64 {d}, {a}, {b}, {d};", in(reg64 a b), options(pure, nomem);
}

/// Converts the two e4m3 in the low half of `x` to f16.
#[inline(always)]
pub fn f16x2_from_e4m3(x: u32) -> u32 {
    if !cfg!(since = "8.9") {
        return e4m3_of_upper_bytes(prmt(x, 0, 0x1404));
    }
    let mut y = 0u32;
    ptx!(
        "{{ .reg .b16 h; cvt.u16.u32 h, {x}; cvt.rn.f16x2.e4m3x2 {y}, h; }}",
        y = inout(reg32) y, x = in(reg32) x, options(pure, nomem, nostack)
    );
    y
}

/// Converts the four e4m3 in `x` to two pairs of f16. The GPU determines the bytes of a pair.
#[inline(always)]
pub fn f16x4_from_e4m3(x: u32) -> [u32; 2] {
    if cfg!(since = "8.9") {
        [f16x2_from_e4m3(x), f16x2_from_e4m3(x >> 16)]
    } else {
        [e4m3_of_upper_bytes(x << 8), e4m3_of_upper_bytes(x)]
    }
}

/// Converts the e4m3 in the upper byte of each half of `x` to f16, by an exact multiplication. The exponent bias of f16
/// is larger by 8, so the bits of an e4m3 read as f16 are 2^-8 times its value.
#[inline(always)]
fn e4m3_of_upper_bytes(x: u32) -> u32 {
    const TWO_TO_8: u32 = 0x5c00_5c00;
    // 35488. 448 x 2^-8 times this is finite; 480 x 2^-8, a NaN code, times this is infinite.
    const BEYOND: u32 = 0x7855_7855;
    let small = x >> 1 & 0x3f80_3f80 | x & 0x8000_8000;
    // Zero, or NaN for a NaN code.
    let not = mul_f16x2(mul_f16x2(small, BEYOND), 0);
    fma_f16x2(small, TWO_TO_8, not)
}

/// Converts the four e5m2 in `x` to two pairs of f16: bytes 0 and 2, and bytes 1 and 3. An e5m2 is the upper byte of its
/// f16.
#[inline(always)]
pub fn f16x4_from_e5m2(x: u32) -> [u32; 2] {
    [prmt(x, 0, 0x2404), x & 0xff00_ff00]
}

/// Rounds `lo` and `hi` to e4m3, to nearest even, saturated at 448; the result is in the low half.
#[inline(always)]
pub fn e4m3x2_from_f32(lo: f32, hi: f32) -> u32 {
    if !cfg!(since = "8.9") {
        return e4m3_of(lo) | e4m3_of(hi) << 8;
    }
    let mut y = 0u32;
    ptx!(
        "{{ .reg .b16 h; cvt.rn.satfinite.e4m3x2.f32 h, {hi}, {lo}; cvt.u32.u16 {y}, h; }}",
        y = inout(reg32) y, lo = in(reg32) lo, hi = in(reg32) hi, options(pure, nomem, nostack)
    );
    y
}

/// Rounds f32 to e4m3, to nearest even, saturated at 448.
#[inline(always)]
fn e4m3_of(x: f32) -> u32 {
    let (sign, size) = (x.to_bits() >> 24 & 0x80, x.to_bits() & 0x7fff_ffff);
    // As f32: 2^-6, below which e4m3 is subnormal with steps of 2^-9; and 464, halfway between 448 and the first value
    // that e4m3 cannot represent.
    let whole = if size > 0x7f80_0000 {
        0x7f
    } else if size >= 0x43e8_0000 {
        0x7e
    } else if size < 0x3c80_0000 {
        // Adding 2^14 rounds to multiples of 2^-9; the lowest bits of the sum count them.
        (f32::from_bits(size) + 16384.0).to_bits() & 0xf
    } else {
        // Rounds 20 bits of the mantissa off. A carry increases the exponent, whose bias is smaller by 120.
        let rounded = size + 0x7_ffff + (size >> 20 & 1);
        (rounded >> 20) - (120 << 3)
    };
    sign | whole
}

/// All bits of a half are set if that half of `x` is a positive f16.
#[inline(always)]
pub fn positive_f16x2(x: u32) -> u32 {
    let mut y = 0u32;
    ptx!("set.gt.u32.f16x2 {y}, {x}, {zero};", y = out(reg32) y, x = in(reg32) x, zero = in(reg32) 0, options(pure, nomem, nostack));
    y
}

/// All bits of a half are set if that half of `x` is a positive bf16.
#[inline(always)]
pub fn positive_bf16x2(x: u32) -> u32 {
    if !cfg!(since = "9.0") {
        let positive = |half: u32| if half.wrapping_sub(1) < 0x7f80 { 0xffff } else { 0 };
        return positive(x & 0xffff) | positive(x >> 16) << 16;
    }
    let mut y = 0u32;
    ptx!("set.gt.u32.bf16x2 {y}, {x}, {zero};", y = out(reg32) y, x = in(reg32) x, zero = in(reg32) 0, options(pure, nomem, nostack));
    y
}

/// Stores four 8 x 8 matrices of 16-bit elements; lanes 8r..8r+8 pass the addresses of the rows of matrix r. Inverse of
/// [`ldmatrix_x4`].
#[inline(always)]
pub(in crate::device) unsafe fn stmatrix_x4(to: u32, v: [u32; 4]) {
    if !cfg!(since = "9.0") {
        // SAFETY: promised by the caller.
        return unsafe { store_matrices(to, v) };
    }
    ptx!(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{to}], {{{a}, {b}, {c}, {d}}};",
        to = in(reg32) to, a = in(reg32) v[0], b = in(reg32) v[1], c = in(reg32) v[2], d = in(reg32) v[3],
        options(nostack)
    );
}

/// [`stmatrix_x4`] without that instruction: a lane stores its words of a row to the address that another lane holds.
#[inline(always)]
unsafe fn store_matrices(to: u32, v: [u32; 4]) {
    let lane = gpu::opaque_thread() % 32;
    unroll!(r < 4, {
        let row = warp::shfl(to, r as u32 * 8 + lane / 4);
        // SAFETY: promised by the caller, who passes 16 bytes per lane.
        unsafe { copy::st_shared_b32(row + lane % 4 * 4, v[r]) }
    });
}

/// [`stmatrix_x4`] of transposed matrices: the lanes pass the addresses of the columns.
#[inline(always)]
pub(in crate::device) unsafe fn stmatrix_x4_trans(to: u32, v: [u32; 4]) {
    if !cfg!(since = "9.0") {
        // SAFETY: promised by the caller.
        return unsafe { store_transposed(to, v) };
    }
    ptx!(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [{to}], {{{a}, {b}, {c}, {d}}};",
        to = in(reg32) to, a = in(reg32) v[0], b = in(reg32) v[1], c = in(reg32) v[2], d = in(reg32) v[3],
        options(nostack)
    );
}

/// [`stmatrix_x4_trans`] without that instruction: the two elements of a lane's word belong to two columns.
#[inline(always)]
unsafe fn store_transposed(to: u32, v: [u32; 4]) {
    let lane = gpu::opaque_thread() % 32;
    unroll!(r < 4, {
        unroll!(half < 2, {
            let column = r as u32 * 8 + lane % 4 * 2 + half as u32;
            let column = warp::shfl(to, column);
            // SAFETY: as above.
            unsafe { copy::st_shared_b16(column + lane / 4 * 2, v[r] >> (16 * half)) }
        });
    });
}

instructions! {
    /// 2^x, error at most 2 ulp.
    pub ex2_approx(x: f32) -> f32 = y, out(reg32 y = 0f32): "ex2.approx.f32 {y}, {x};", in(reg32 x), options(pure, nomem);
    /// log2(x). The error is at most 2^-22: absolute between 1/2 and 2, relative elsewhere.
    pub lg2_approx(x: f32) -> f32 = y, out(reg32 y = 0f32): "lg2.approx.f32 {y}, {x};", in(reg32 x), options(pure, nomem);
    /// Maximum; NaN if either value is NaN.
    pub max_nan(a: f32, b: f32) -> f32 = y, out(reg32 y = a):
        "max.NaN.f32 {y}, {y}, {b};", in(reg32 b), options(pure, nomem);
    /// 2^x, error at most 2 ulp; results below 2^-126 are flushed to zero.
    pub ex2_approx_ftz(x: f32) -> f32 = y, out(reg32 y = 0f32):
        "ex2.approx.ftz.f32 {y}, {x};", in(reg32 x), options(pure, nomem);
    /// 1 / x, error at most 1 ulp.
    pub rcp_approx(x: f32) -> f32 = y, out(reg32 y = 0f32):
        "rcp.approx.ftz.f32 {y}, {x};", in(reg32 x), options(pure, nomem);
    /// 1 / sqrt(x), relative error at most 2^-22.
    pub rsqrt_approx(x: f32) -> f32 = y, out(reg32 y = 0f32):
        "rsqrt.approx.ftz.f32 {y}, {x};", in(reg32 x), options(pure, nomem);
    /// `a * b` with explicit rounding, so that the compiler does not fuse it with an addition.
    pub mul_f32(a: f32, b: f32) -> f32 = d, out(reg32 d = 0f32):
        "mul.rn.f32 {d}, {a}, {b};", in(reg32 a b), options(pure, nomem);
    /// [`mul_f32`] in f64.
    pub mul_f64(a: f64, b: f64) -> f64 = d, out(reg64 d = 0f64):
        "mul.rn.f64 {d}, {a}, {b};", in(reg64 a b), options(pure, nomem);
}
