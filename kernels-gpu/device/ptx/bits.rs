//! Values to places by their bits.

use super::copy::load_shared_b16;
use super::matrix::bytes;
use super::ptx;

/// The sum of `c` and of the products of the bytes of `a` and `b`.
#[inline(always)]
pub fn dot(a: u32, b: u32, c: u32) -> u32 {
    let mut d = 0u32;
    ptx!(
        "dp4a.u32.u32 {d}, {a}, {b}, {c};",
        d = inout(reg32) d, a = in(reg32) a, b = in(reg32) b, c = in(reg32) c,
        options(pure, nomem, nostack)
    );
    d
}

/// The sum of `c` and of the products of the bytes of `a` and `b`, all signed.
#[inline(always)]
pub fn dot_s8(a: u32, b: u32, c: i32) -> i32 {
    let mut d = 0i32;
    ptx!(
        "dp4a.s32.s32 {d}, {a}, {b}, {c};",
        d = inout(reg32) d, a = in(reg32) a, b = in(reg32) b, c = in(reg32) c,
        options(pure, nomem, nostack)
    );
    d
}

/// `a * b + c`.
#[inline(always)]
fn mad(a: u32, b: u32, c: u32) -> u32 {
    let mut d = 0u32;
    ptx!(
        "mad.lo.u32 {d}, {a}, {b}, {c};",
        d = inout(reg32) d, a = in(reg32) a, b = in(reg32) b, c = in(reg32) c,
        options(pure, nomem, nostack)
    );
    d
}

/// Factors that a loop holds in registers: as constants they would be fetched into uniform ones every time.
#[derive(Clone, Copy)]
pub struct Weights {
    /// Low bits weigh 2 bytes each: one, two, three, four of them.
    low: [u32; 4],
    /// High bits are twos themselves: one, two, three of them.
    high: [u32; 3],
    /// From zeros to values, for low and for high bits.
    pick: [u32; 2],
}

impl Weights {
    /// Once, in front of the loop.
    #[inline(always)]
    pub fn new() -> Weights {
        let again = super::warp::again;
        Weights {
            low: [0x2, 0x202, 0x2_0202, 0x202_0202].map(again),
            high: [0x1, 0x101, 0x1_0101].map(again),
            // Of each set bit's bytes 3 2 to 1 0, 7 6 to 5 4.
            pick: [0u32.wrapping_sub(0x22), 0u32.wrapping_sub(0x11)].map(again),
        }
    }
}

/// Bytes 2 3 6 7 of two 16-bit values side by side, both times: zeros.
const ZEROS: u32 = 0x7632_7632;

/// A lane's fragment of a square of 16 x 16. Bit `8 i + h` of `bits` (`i` < 4, `h` < 2; others do not matter) says whether half
/// `i % 2` of register `2 h + i / 2` is there; what is there lies at shared `from` in ascending `4 h + i`, the rest is zero.
///
/// Everything is loaded, also in vain, from where the next value lies: the number of bits in front, summed up by dot products. A
/// value comes with zeros above it, and so a permutation by bits picks value or zero. Few steps of this go to the integer pipe, which
/// has half the rate of the others.
#[inline(always)]
pub fn expand(w: Weights, bits: u32, from: u32) -> [u32; 4] {
    let (low, high) = (bits & 0x0101_0101, bits & 0x0202_0202);
    let middle = dot(low, w.low[3], from);
    let pairs = |first: u32, bits: u32, weights: [u32; 3], pick: u32| {
        let v = [
            load_shared_b16(first),
            load_shared_b16(dot(bits, weights[0], first)),
            load_shared_b16(dot(bits, weights[1], first)),
            load_shared_b16(dot(bits, weights[2], first)),
        ];
        [bytes(v[0], v[1], pick), bytes(v[2], v[3], pick >> 16)]
    };
    let [one, two, three, _] = w.low;
    let [a, b] = pairs(from, low, [one, two, three], mad(low, w.pick[0], ZEROS));
    let [c, d] = pairs(middle, high, w.high, mad(high, w.pick[1], ZEROS));
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

/// Stores the low halves of `values` to shared `to`, the last one first, if `there`.
#[inline(always)]
pub fn store_halves(to: [u32; 4], values: [u32; 4], there: bool) {
    ptx!(
        "{{ .reg .pred p; setp.ne.u32 p, {there}, 0;",
        "@p st.shared.u16 [{d}], {z}; @p st.shared.u16 [{c}], {y};",
        "@p st.shared.u16 [{b}], {x}; @p st.shared.u16 [{a}], {w}; }}",
        a = in(reg32) to[0], b = in(reg32) to[1], c = in(reg32) to[2], d = in(reg32) to[3],
        w = in(reg32) values[0], x = in(reg32) values[1], y = in(reg32) values[2], z = in(reg32) values[3],
        there = in(reg32) there as u32,
        options(nostack)
    );
}

/// Orders this thread's writes to shared memory before what the Tensor Cores and the copy engine read there.
#[inline(always)]
pub fn fence_async() {
    ptx!("fence.proxy.async.shared::cta;", options(nostack));
}
