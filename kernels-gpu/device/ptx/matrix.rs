//! `ldmatrix`, `mma.sync` and the conversions around them. Fragment layouts: `crate::frag`.

use super::{copy, ptx, warp};
use crate::device::gpu;

/// Four 8 x 8 matrices of 16-bit elements; lanes 8r..8r+8 give the rows of matrix r.
#[inline(always)]
pub fn ldmatrix_x4(from: u32) -> [u32; 4] {
    let (mut a, mut b, mut c, mut d) = (0u32, 0u32, 0u32, 0u32);
    ptx!(
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{a}, {b}, {c}, {d}}}, [{from}];",
        a = inout(reg32) a, b = inout(reg32) b, c = inout(reg32) c, d = inout(reg32) d, from = in(reg32) from,
        options(nostack)
    );
    [a, b, c, d]
}

/// As [`ldmatrix_x4`]; zeros where `there`, the same for all lanes, is false.
#[inline(always)]
pub fn ldmatrix_x4_if(from: u32, there: bool) -> [u32; 4] {
    let (mut a, mut b, mut c, mut d) = (0u32, 0u32, 0u32, 0u32);
    ptx!(
        "{{ .reg .pred p; setp.ne.u32 p, {ok}, 0; @p ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{a}, {b}, {c}, {d}}}, [{from}]; }}",
        a = inout(reg32) a, b = inout(reg32) b, c = inout(reg32) c, d = inout(reg32) d, from = in(reg32) from,
        ok = in(reg32) there as u32,
        options(nostack)
    );
    [a, b, c, d]
}

/// As [`ldmatrix_x4`], each matrix transposed.
#[inline(always)]
pub fn ldmatrix_x4_trans(from: u32) -> [u32; 4] {
    let (mut a, mut b, mut c, mut d) = (0u32, 0u32, 0u32, 0u32);
    ptx!(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{a}, {b}, {c}, {d}}}, [{from}];",
        a = inout(reg32) a, b = inout(reg32) b, c = inout(reg32) c, d = inout(reg32) d, from = in(reg32) from,
        options(nostack)
    );
    [a, b, c, d]
}

/// As [`ldmatrix_x4_trans`]; zeros where `there`, the same for all lanes, is false.
#[inline(always)]
pub fn ldmatrix_x4_trans_if(from: u32, there: bool) -> [u32; 4] {
    let (mut a, mut b, mut c, mut d) = (0u32, 0u32, 0u32, 0u32);
    ptx!(
        "{{ .reg .pred p; setp.ne.u32 p, {ok}, 0; @p ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{a}, {b}, {c}, {d}}}, [{from}]; }}",
        a = inout(reg32) a, b = inout(reg32) b, c = inout(reg32) c, d = inout(reg32) d, from = in(reg32) from,
        ok = in(reg32) there as u32,
        options(nostack)
    );
    [a, b, c, d]
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

/// No instruction: the compiler keeps the registers until here.
#[inline(always)]
pub fn keep(words: [u32; 4]) {
    ptx!(
        "// {a} {b} {c} {d}",
        a = in(reg32) words[0], b = in(reg32) words[1], c = in(reg32) words[2], d = in(reg32) words[3],
        options(nostack)
    );
}

/// f32 rounded to TF32, to nearest, ties away from zero.
#[inline(always)]
pub fn round_tf32(x: u32) -> u32 {
    let mut y = 0u32;
    ptx!("cvt.rna.tf32.f32 {y}, {x};", y = inout(reg32) y, x = in(reg32) x, options(pure, nomem, nostack));
    y
}

/// The f16 in the low half of `x` as f32.
#[inline(always)]
pub fn f32_from_f16(x: u32) -> f32 {
    let mut y = 0f32;
    ptx!(
        "{{ .reg .b16 h; cvt.u16.u32 h, {x}; cvt.f32.f16 {y}, h; }}",
        y = inout(reg32) y, x = in(reg32) x,
        options(pure, nomem, nostack)
    );
    y
}

/// `lo` and `hi` rounded to nearest even, packed.
#[inline(always)]
pub fn f16x2_from_f32(lo: f32, hi: f32) -> u32 {
    let mut y = 0u32;
    ptx!(
        "cvt.rn.f16x2.f32 {y}, {hi}, {lo};",
        y = inout(reg32) y, lo = in(reg32) lo, hi = in(reg32) hi,
        options(pure, nomem, nostack)
    );
    y
}

/// `lo` and `hi` rounded to nearest even, packed.
#[inline(always)]
pub fn bf16x2_from_f32(lo: f32, hi: f32) -> u32 {
    let mut y = 0u32;
    ptx!(
        "cvt.rn.bf16x2.f32 {y}, {hi}, {lo};",
        y = inout(reg32) y, lo = in(reg32) lo, hi = in(reg32) hi,
        options(pure, nomem, nostack)
    );
    y
}

/// Four of the eight bytes of two words, `a`'s first: those that the digits of `which` name, lowest first.
#[inline(always)]
pub fn bytes(a: u32, b: u32, which: u32) -> u32 {
    let mut y = 0u32;
    ptx!(
        "prmt.b32 {y}, {a}, {b}, {which};",
        y = inout(reg32) y, a = in(reg32) a, b = in(reg32) b, which = in(reg32) which,
        options(pure, nomem, nostack)
    );
    y
}

/// `a * b + c`, rounded once.
#[inline(always)]
pub fn fma_f32(a: f32, b: f32, c: f32) -> f32 {
    let mut d = c;
    ptx!(
        "fma.rn.f32 {d}, {a}, {b}, {d};",
        d = inout(reg32) d, a = in(reg32) a, b = in(reg32) b,
        options(pure, nomem, nostack)
    );
    d
}

/// `a * b + c`, rounded once.
#[inline(always)]
pub fn fma_f64(a: f64, b: f64, c: f64) -> f64 {
    let mut d = c;
    ptx!(
        "fma.rn.f64 {d}, {a}, {b}, {d};",
        d = inout(reg64) d, a = in(reg64) a, b = in(reg64) b,
        options(pure, nomem, nostack)
    );
    d
}

/// All bits of those halves of `x` that are positive f16.
#[inline(always)]
pub fn positive_f16x2(x: u32) -> u32 {
    let mut y = 0u32;
    ptx!("set.gt.u32.f16x2 {y}, {x}, {zero};", y = out(reg32) y, x = in(reg32) x, zero = in(reg32) 0, options(pure, nomem, nostack));
    y
}

/// All bits of those halves of `x` that are positive bf16. Compute capability 9.0.
#[inline(always)]
pub fn positive_bf16x2(x: u32) -> u32 {
    let mut y = 0u32;
    ptx!("set.gt.u32.bf16x2 {y}, {x}, {zero};", y = out(reg32) y, x = in(reg32) x, zero = in(reg32) 0, options(pure, nomem, nostack));
    y
}

/// Stores four 8 x 8 matrices of 16-bit elements; lanes 8r..8r+8 give the rows of matrix r. Inverse of [`ldmatrix_x4`].
#[inline(always)]
pub fn stmatrix_x4(to: u32, v: [u32; 4]) {
    if cfg!(arch = "sm_80") {
        return store_matrices(to, v);
    }
    ptx!(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{to}], {{{a}, {b}, {c}, {d}}};",
        to = in(reg32) to, a = in(reg32) v[0], b = in(reg32) v[1], c = in(reg32) v[2], d = in(reg32) v[3],
        options(nostack)
    );
}

/// [`stmatrix_x4`] without that instruction: a lane stores its words of a row to where another lane says.
#[inline(always)]
fn store_matrices(to: u32, v: [u32; 4]) {
    let lane = gpu::thread() % 32;
    unroll!(r < 4, {
        let row = warp::shuffle::<32>(to, r as u32 * 8 + lane / 4, u32::MAX);
        copy::store_shared_b32(row + lane % 4 * 4, v[r]);
    });
}

/// The same, of the transposed matrices: the lanes' addresses are those of the columns of what they hold.
#[inline(always)]
pub fn stmatrix_x4_trans(to: u32, v: [u32; 4]) {
    ptx!(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [{to}], {{{a}, {b}, {c}, {d}}};",
        to = in(reg32) to, a = in(reg32) v[0], b = in(reg32) v[1], c = in(reg32) v[2], d = in(reg32) v[3],
        options(nostack)
    );
}

/// 2 to the power of `x`, to 2 ulp.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    let mut y = 0f32;
    ptx!("ex2.approx.f32 {y}, {x};", y = inout(reg32) y, x = in(reg32) x, options(pure, nomem, nostack));
    y
}

/// The logarithm of `x` to base 2, to 2^-22: absolute between 1/2 and 2, relative elsewhere.
#[inline(always)]
pub fn log2(x: f32) -> f32 {
    let mut y = 0f32;
    ptx!("lg2.approx.f32 {y}, {x};", y = inout(reg32) y, x = in(reg32) x, options(pure, nomem, nostack));
    y
}

/// The larger of two, NaN if one of them is.
#[inline(always)]
pub fn max_or_nan(a: f32, b: f32) -> f32 {
    let mut y = a;
    ptx!("max.NaN.f32 {y}, {y}, {b};", y = inout(reg32) y, b = in(reg32) b, options(pure, nomem, nostack));
    y
}

/// 2 to the power of `x`, to 2 ulp; results below 2^-126 are zero.
#[inline(always)]
pub fn exp2_flushed(x: f32) -> f32 {
    let mut y = 0f32;
    ptx!("ex2.approx.ftz.f32 {y}, {x};", y = inout(reg32) y, x = in(reg32) x, options(pure, nomem, nostack));
    y
}

/// 1 / `x`, to 1 ulp.
#[inline(always)]
pub fn reciprocal(x: f32) -> f32 {
    let mut y = 0f32;
    ptx!("rcp.approx.ftz.f32 {y}, {x};", y = inout(reg32) y, x = in(reg32) x, options(pure, nomem, nostack));
    y
}

/// 1 / sqrt(`x`), to 2^-22.
#[inline(always)]
pub fn inverse_root(x: f32) -> f32 {
    let mut y = 0f32;
    ptx!("rsqrt.approx.ftz.f32 {y}, {x};", y = inout(reg32) y, x = in(reg32) x, options(pure, nomem, nostack));
    y
}

/// `a * b`, rounded: with its rounding named, the product is not fused with a sum.
#[inline(always)]
pub fn mul_f32(a: f32, b: f32) -> f32 {
    let mut d = 0f32;
    ptx!("mul.rn.f32 {d}, {a}, {b};", d = inout(reg32) d, a = in(reg32) a, b = in(reg32) b, options(pure, nomem, nostack));
    d
}

/// As [`mul_f32`].
#[inline(always)]
pub fn mul_f64(a: f64, b: f64) -> f64 {
    let mut d = 0f64;
    ptx!("mul.rn.f64 {d}, {a}, {b};", d = inout(reg64) d, a = in(reg64) a, b = in(reg64) b, options(pure, nomem, nostack));
    d
}
