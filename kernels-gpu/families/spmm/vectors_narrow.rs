//! The kernels `vectors_narrow`: windows of eight rows of A as in `vectors`, for 8-bit integers, on `mma.m16n8k16.s8`
//! with swapped operands and i32 accumulators. `ldmatrix.trans` transposes pairs of bytes; a byte permutation then
//! sorts them by columns.

use crate::device::epilogue::{Output, finish, output, scale};
use crate::device::prelude::*;
use crate::families::spmm::abi::*;
use crate::families::spmm::vectors::{Entries, Share};

/// Sums of 16 columns and eight rows in the atom's layout: lane `4 g + q` has rows `2 q` and `2 q + 1` of column `2 g`,
/// then of column `2 g + 1`.
type Square = [u32; 4];
/// Squares of 128 columns.
const SQUARES: usize = SLAB_BYTES as usize / 16;

/// Squares (16 columns) of a thread block that are inside of C.
#[inline(always)]
fn squares(p: &VectorsParams, share: &Share) -> u32 {
    (p.n - share.left).div_ceil(16).min(SQUARES as u32)
}

impl Entries<u32> {
    /// Returns four bytes, with zero if there is no entry.
    #[inline(always)]
    fn operand(self) -> u32 {
        let own = matrix::prmt(self.words[0], self.words[1], 0x3210 + self.first * 0x1111);
        let valid = self.valid;
        // The number of entries before that of vector j is the number of bits below bit j. The second word is zero.
        let before = (valid & 1) * 0x1110 + (valid >> 1 & 1) * 0x1100 + (valid >> 2 & 1) * 0x1000;
        let absent = !valid & 0xf;
        let zeros = (absent & 1) << 2 | (absent & 2) << 5 | (absent & 4) << 8 | (absent & 8) << 11;
        matrix::prmt(own, 0, before + zeros)
    }
}

/// Adds a step whose rows of B are in a stage.
#[inline(always)]
fn multiply(
    share: &Share,
    squares: u32,
    acc: &mut [Square; SQUARES],
    (stage, operand): (Shared<u8>, u32),
) {
    let from = share.fragments(stage);
    unroll!(t < 4, {
        if t as u32 * 2 < squares {
            // The address of chunk 2 t + c is that of chunk c with the bits of 2 t flipped.
            let m = from.flipped(t as u32 * 32).ldmatrix_trans();
            unroll!(c < 2, {
                // Each register holds pairs of columns of two vectors. The permutation gives four vectors of one
                // column, then of the other.
                let (upper, lower) = (m[c], m[c + 2]);
                let a = [matrix::prmt(upper, lower, 0x6420), matrix::prmt(upper, lower, 0x7531)];
                matrix::mma_s8(&mut acc[2 * t + c], a, operand);
            });
        }
    });
}

/// Loads up to 16 bytes from any address and pads them with zeros.
#[inline(always)]
fn by_bytes(from: Global<u8, ReadOnly>, bytes: u32) -> [u32; 4] {
    let mut words = [0u32; 4];
    unroll!(w < 4, {
        unroll!(i < 4, {
            let at = (w * 4 + i) as u32;
            words[w] |= from.at(at).ld_if(at < bytes) << (8 * i as u32);
        });
    });
    words
}

#[inline(always)]
fn saturated(x: i64) -> u32 {
    x.clamp(i32::MIN as i64, i32::MAX as i64) as i32 as u32
}

/// Stores two neighbouring sums of a row, in the type of C given by the flags.
#[inline(always)]
fn store(o: Output, row: u32, column: u32, len: u32, sums: [u32; 2]) {
    if o.flags & FLAG_OUT_F16 != 0 {
        store_float::<F16>(o, row, column, len, sums);
    } else if o.flags & FLAG_OUT_BF16 != 0 {
        store_float::<Bf16>(o, row, column, len, sums);
    } else if o.flags & FLAG_OUT_F32 != 0 {
        store_float::<F32>(o, row, column, len, sums);
    } else {
        store_whole(o, row, column, sums);
    }
}

#[inline(always)]
fn store_float<E: crate::device::elem::Elem<Acc = f32>>(
    o: Output,
    row: u32,
    column: u32,
    len: u32,
    sums: [u32; 2],
) {
    let sums = sums.map(|x| x as i32 as f32);
    let factors = (scale::<E>(o, len), 0.0);
    if o.flags & FLAG_VECTORS != 0 {
        finish::<E, 2>(o, row, column, factors, sums);
    } else {
        unroll!(i < 2, {
            finish::<E, 1>(o, row, column + i as u32, factors, [sums[i]]);
        });
    }
}

/// Stores sums times an integer factor, saturated; adds them to C with `FLAG_ACCUMULATE`.
#[inline(always)]
fn store_whole(o: Output, row: u32, column: u32, sums: [u32; 2]) {
    let alpha = o.alpha as i32 as i64;
    let at = o.c.row(row, o.ldc_bytes).cast::<u32>().at(column);
    let mut words = [0u32; 2];
    unroll!(i < 2, {
        let inside = column + (i as u32) < o.n;
        let add = inside && o.flags & FLAG_ACCUMULATE != 0;
        let old = at.at(i as u64).ld_if(add) as i32;
        words[i] = saturated(sums[i] as i32 as i64 * alpha + old as i64);
    });
    if o.flags & FLAG_VECTORS != 0 {
        if column < o.n {
            at.cast::<[u32; 2]>().st(words);
        }
    } else {
        unroll!(i < 2, {
            let inside = column + (i as u32) < o.n;
            at.at(i as u64).st_if(words[i], inside);
        });
    }
}

impl<const WINDOWS: u32, const PARTS: u32, const ALIGNED: bool>
    NarrowVectors<WINDOWS, PARTS, ALIGNED>
{
    /// Sums this warp's steps of a window. Bytes copied for missing vectors are multiplied by zero, and an integer times
    /// zero is zero.
    #[inline(always)]
    fn sum(p: &VectorsParams, share: &Share) -> [Square; SQUARES] {
        let mut acc = [[0u32; 4]; SQUARES];
        let (inside, squares) = (p.n.saturating_sub(share.column).min(16), squares(p, share));
        let copy = |from: Global<u8, ReadOnly>, to: Shared<u8>, valid: bool| {
            let bytes = if valid { inside } else { 0 };
            if ALIGNED {
                let from = if bytes > 0 { from } else { p.b() };
                from.cp_async_16(to, bytes);
            } else {
                to.cast::<[u32; 4]>().st(by_bytes(from, bytes));
            }
        };
        share.each_step::<Self, u32>(p, copy, |stage, entries| {
            multiply(share, squares, &mut acc, (stage, entries.operand()));
        });
        acc
    }

    /// Returns the index of a word of a lane's sums in the ring.
    #[inline(always)]
    fn place(lane: u32, square: u32, i: u32) -> u32 {
        (square * 4 + i) * 32 + lane
    }

    /// Adds the parts and stores every `PARTS`th square of 16 columns.
    #[inline(always)]
    fn write(p: &VectorsParams, share: &Share) {
        let o = p.narrow_output();
        let (g, q) = (share.lane / 4, share.lane % 4);
        let mut square = share.part;
        while square < squares(p, share) {
            let mut sums = [0u32; 4];
            let mut of = 0;
            while of < PARTS {
                let from = share.ring_of::<Self>(of).cast::<u32>();
                unroll!(i < 4, {
                    let at = from.at(Self::place(share.lane, square, i as u32));
                    sums[i] = sums[i].wrapping_add(at.ld());
                });
                of += 1;
            }
            let column = share.left + square * 16 + g * 2;
            unroll!(r < 2, {
                let within = q * 2 + r as u32;
                let row = share.window * WINDOW + within;
                if row < p.m {
                    let len = share.filled >> within & 1;
                    store(o, row, column, len, [sums[r], sums[r + 2]]);
                }
            });
            square += PARTS;
        }
    }
}

impl VectorsParams {
    #[inline(always)]
    fn narrow_output(&self) -> Output {
        let o = output!(self);
        Output { bias: o.c, ..o }
    }
}

impl<W: WalkInfo, E: ElemInfo, const WINDOWS: u32, const PARTS: u32, const ALIGNED: bool>
    Kernel<W, E, VectorsParams> for NarrowVectors<WINDOWS, PARTS, ALIGNED>
{
    #[inline(always)]
    unsafe fn run(p: &VectorsParams, _at: Maps) {
        let share = Share::new::<Self>(p, 1);
        // With one part no thread waits for another. With several, every thread must reach the barrier.
        if PARTS == 1 && !share.inside {
            return;
        }
        let acc = Self::sum(p, &share);
        unroll!(c < SQUARES, {
            unroll!(i < 4, {
                let word = Self::place(share.lane, c as u32, i as u32);
                share.ring.cast::<u32>().at(word).st(acc[c][i]);
            });
        });
        Share::sync::<Self>();
        if share.inside {
            Self::write(p, &share);
        }
    }
}
