//! Bitmaps to fragments: positions of stored values from the set bits of a word.

use super::copy::ld_shared_b16;
use super::matrix::prmt;
use super::{instructions, ptx};

instructions! {
    /// Address of row `row` for a row stride of `bytes`, in one instruction. The compiler would widen loop invariants
    /// first and multiply 64 bits.
    pub(in crate::device) at_row(base: u64, row: u32, bytes: u32) -> u64 = address, out(reg64 address = 0):
        "mad.wide.u32 {address}, {row}, {bytes}, {base};", in(reg32 row bytes, reg64 base), options(pure, nomem);
    /// `c` plus the dot product of the unsigned bytes of `a` and `b`.
    pub dp4a(a: u32, b: u32, c: u32) -> u32 = d, out(reg32 d = 0):
        "dp4a.u32.u32 {d}, {a}, {b}, {c};", in(reg32 a b c), options(pure, nomem);
    /// `c` plus the dot product of the signed bytes of `a` and `b`.
    pub dp4a_s8(a: u32, b: u32, c: i32) -> i32 = d, out(reg32 d = 0):
        "dp4a.s32.s32 {d}, {a}, {b}, {c};", in(reg32 a b c), options(pure, nomem);
    mad(a: u32, b: u32, c: u32) -> u32 = d, out(reg32 d = 0):
        "mad.lo.u32 {d}, {a}, {b}, {c};", in(reg32 a b c), options(pure, nomem);
}

/// Weights of dot products, kept in registers across a loop. Constants would be loaded into uniform registers in every
/// iteration.
#[derive(Clone, Copy)]
pub struct Weights {
    /// Weights of one, two and three low bits: 2 bytes each.
    low: [u32; 3],
    /// Weights of one, two and three high bits, whose value is 2 already.
    high: [u32; 3],
    /// Selectors of `prmt`, zeros or values, for low and for high bits.
    pick: [u32; 2],
}

impl Weights {
    /// Creates the weights; once, before the loop.
    #[inline(always)]
    pub fn new() -> Weights {
        let opaque = super::warp::opaque;
        Weights {
            low: [0x2, 0x202, 0x2_0202].map(opaque),
            high: [0x1, 0x101, 0x1_0101].map(opaque),
            // A set bit changes the selected bytes from 3 2 to 1 0, and from 7 6 to 5 4.
            pick: [0u32.wrapping_sub(0x22), 0u32.wrapping_sub(0x11)].map(opaque),
        }
    }
}

/// Selector of bytes 2, 3, 6 and 7 of two words with a 16-bit value each: all four bytes are zero.
const ZEROS: u32 = 0x7632_7632;

/// A lane's fragment of a 16 x 16 square. Bit `8 i + h` of `bits` (`i` < 4, `h` < 2; other bits are ignored) is set if
/// half `i % 2` of register `2 h + i / 2` is stored. Stored halves are at shared address `from[h]`, in ascending order
/// of `i`; all other halves are zero.
///
/// All eight halves are loaded, each from the address of the next stored value: the number of set bits before it, as a
/// dot product. A load of 16 bits zeroes the upper half, so a byte permutation selects the value or zero. Most of these
/// instructions avoid the integer pipe, which has half the rate of the other pipes.
///
/// # Safety
/// The stored halves, and those that follow them, must be shared memory of the thread block, at even addresses.
#[inline(always)]
pub unsafe fn expand(w: Weights, bits: u32, from: [u32; 2]) -> [u32; 4] {
    let (low, high) = (bits & 0x0101_0101, bits & 0x0202_0202);
    let pairs = |first: u32, bits: u32, weights: [u32; 3], pick: u32| {
        let next = |i: usize| dp4a(bits, weights[i], first);
        // SAFETY: promised by the caller.
        let v = unsafe {
            [
                ld_shared_b16(first),
                ld_shared_b16(next(0)),
                ld_shared_b16(next(1)),
                ld_shared_b16(next(2)),
            ]
        };
        [prmt(v[0], v[1], pick), prmt(v[2], v[3], pick >> 16)]
    };
    let [a, b] = pairs(from[0], low, w.low, mad(low, w.pick[0], ZEROS));
    let [c, d] = pairs(from[1], high, w.high, mad(high, w.pick[1], ZEROS));
    [a, b, c, d]
}

/// Number of set bits in the left halves and in the right halves of a word's four squares: byte `t` of the first and of
/// the second result is square `t`.
#[inline(always)]
pub fn halves_of_squares(word: u32) -> [u32; 2] {
    let even = |word: u32| {
        // Counts of squares 0 and 2, then of 1 and 3, four bits each.
        let [a, b] = [word, word >> 2].map(|w| dp4a(w & 0x1111_1111, 0x0101_0101, 0));
        let all = mad(b, 0x100, a);
        mad(all & 0xf0f0, 0x1000, all & 0x0f0f)
    };
    [even(word), even(word >> 1)]
}

/// `c` minus twice byte `which` of `bytes`.
#[inline(always)]
pub fn less_twice(bytes: u32, which: u32, c: u32) -> u32 {
    let mut d = 0u32;
    ptx!(
        "dp4a.u32.s32 {d}, {a}, {b}, {c};",
        d = inout(reg32) d, a = in(reg32) bytes, b = in(reg32) 0xfe_u32 << (8 * which), c = in(reg32) c,
        options(pure, nomem, nostack)
    );
    d
}

/// `c` plus twice half `which` of `halves`.
#[inline(always)]
pub fn plus_twice(halves: u32, which: u32, c: u32) -> u32 {
    let mut d = 0u32;
    ptx!(
        "dp2a.lo.u32.u32 {d}, {a}, {b}, {c};",
        d = inout(reg32) d, a = in(reg32) halves, b = in(reg32) 2_u32 << (8 * which), c = in(reg32) c,
        options(pure, nomem, nostack)
    );
    d
}

/// One step of [`scan_pairs`].
#[cfg(target_arch = "nvptx64")]
macro_rules! scan_step {
    ($by:literal: $($down:literal $up:literal),+) => {
        concat!($(
            "shfl.sync.down.b32 t|p, {", $down, "}, ", $by, ", 31, 0xffffffff; @p add.u32 {", $down, "}, {", $down, "}, t;",
            "shfl.sync.up.b32 t|p, {", $up, "}, ", $by, ", 0, 0xffffffff; @p add.u32 {", $up, "}, {", $up, "}, t;",
        )+)
    };
}

/// Inclusive sums of each pair over the lanes of a warp: the first over this lane and all higher ones, the second over
/// this lane and all lower ones. Every lane must call it together.
#[inline(always)]
pub fn scan_pairs<const COUNT: usize>(pairs: &mut [[u32; 2]; COUNT]) {
    if COUNT == 1 {
        let [mut a, mut b] = pairs[0];
        ptx!(
            "{{ .reg .pred p; .reg .b32 t;",
            scan_step!("1": "a" "b"), scan_step!("2": "a" "b"), scan_step!("4": "a" "b"),
            scan_step!("8": "a" "b"), scan_step!("16": "a" "b"), "}}",
            a = inout(reg32) a, b = inout(reg32) b, options(nostack)
        );
        pairs[0] = [a, b];
    } else {
        let [mut a, mut b] = pairs[0];
        let [mut c, mut d] = pairs[1];
        ptx!(
            "{{ .reg .pred p; .reg .b32 t;",
            scan_step!("1": "a" "b", "c" "d"), scan_step!("2": "a" "b", "c" "d"), scan_step!("4": "a" "b", "c" "d"),
            scan_step!("8": "a" "b", "c" "d"), scan_step!("16": "a" "b", "c" "d"), "}}",
            a = inout(reg32) a, b = inout(reg32) b, c = inout(reg32) c, d = inout(reg32) d, options(nostack)
        );
        pairs[0] = [a, b];
        pairs[1] = [c, d];
    }
}

/// Stores the low halves of `values` to the shared addresses `to` if `valid`, in descending order.
///
/// # Safety
/// If `valid`, the addresses must be of shared memory of the thread block, and even.
#[inline(always)]
pub unsafe fn store_halves(to: [u32; 4], values: [u32; 4], valid: bool) {
    ptx!(
        "{{ .reg .pred p; setp.ne.u32 p, {valid}, 0;",
        "@p st.shared.u16 [{d}], {z}; @p st.shared.u16 [{c}], {y};",
        "@p st.shared.u16 [{b}], {x}; @p st.shared.u16 [{a}], {w}; }}",
        a = in(reg32) to[0], b = in(reg32) to[1], c = in(reg32) to[2], d = in(reg32) to[3],
        w = in(reg32) values[0], x = in(reg32) values[1], y = in(reg32) values[2], z = in(reg32) values[3],
        valid = in(reg32) valid as u32,
        options(nostack)
    );
}
