//! SpMM on Tensor Cores for unstructured A. A window is eight rows of A; a column of a window that has an entry is a
//! *vector*. The operands are swapped, C^T = B^T A^T, so that the vectors are the 8-wide operand of `mma.m16n8`, which
//! wastes the fewest multiplications (FlashSparse, arXiv 2412.11007, section 3). Every warp copies its rows of B
//! through a ring in shared memory.

mod share;

use crate::device::epilogue::{Output, finish, output, row_bias, scale};
use crate::device::mma::MmaElem;
use crate::device::prelude::*;
use crate::families::spmm::abi::*;
pub use share::{Entries, Share};

buffers! {
    // `VectorProduct` makes the windows and the records from the pattern of A, and checks the alignment and the strides.
    // `ProductPlan` checks the shapes and the pattern.
    unsafe VectorsParams {
        windows: [u32; 4], ReadOnly;
        records: u32, ReadOnly;
        values: u8, ReadOnly;
        b: u8, ReadOnly;
    }
}

/// Accumulators of a slab (128 bytes of columns): 16 columns an atom, in the atom's layout.
type Slab = [[f32; 4]; 4];

impl VectorsParams {
    #[inline(always)]
    fn output(&self) -> Output {
        output!(self)
    }
}

impl Entries<[u32; 2]> {
    /// Returns four vectors' entries in the atom's layout, with zero if there is no entry.
    #[inline(always)]
    fn operand(self) -> [u32; 2] {
        let [[mut a, mut b], [mut c, d]] = self.words;
        if self.first & 2 != 0 {
            (a, b, c) = (b, c, d);
        }
        let half = 0x3210 + (self.first & 1) * 0x2222;
        let (low, high) = (matrix::prmt(a, b, half), matrix::prmt(b, c, half));
        // The number of entries before that of vector j is the number of bits below bit j.
        let valid = self.valid;
        let (b0, b1, b2) = (valid & 1, valid >> 1 & 1, valid >> 2 & 1);
        let pair = |one: u32, two: u32| 0x1010 + one * 0x22 + two * 0x2200;
        let mask = |bits: u32| ((bits & 1) * 0xffff) | ((bits >> 1 & 1) * 0xffff_0000);
        [
            matrix::prmt(low, high, pair(0, b0)) & mask(valid),
            matrix::prmt(low, high, pair(b0 + b1, b0 + b1 + b2)) & mask(valid >> 2),
        ]
    }
}

impl<const SLABS: usize, const WINDOWS: u32, const PARTS: u32> Vectors<SLABS, WINDOWS, PARTS> {
    /// Sums this warp's steps of a window. Missing vectors and columns are filled with zeros, because zero times
    /// infinity is not zero.
    #[inline(always)]
    fn sum<E: MmaElem>(p: &VectorsParams, share: &Share) -> [Slab; SLABS] {
        let mut acc = [[[0f32; 4]; 4]; SLABS];
        let copy = |from: Global<u8, ReadOnly>, to: Shared<u8>, valid: bool| {
            unroll!(s < SLABS, {
                let column = share.column + s as u32 * SLAB_COLUMNS;
                let bytes = if valid && column < p.n { 16 } else { 0 };
                let from = if bytes > 0 { from.bytes(s as u32 * SLAB_BYTES) } else { p.b() };
                from.cp_async_16(to.bytes(s as u32 * STAGE_SLAB), bytes);
            });
        };
        share.each_step::<Self, [u32; 2]>(p, copy, |stage, entries| {
            let operand = entries.operand();
            unroll!(s < SLABS, {
                let from = share.fragments(stage.bytes(s as u32 * STAGE_SLAB));
                unroll!(t < 4, {
                    // The address of chunk 2 t + c is that of chunk c with the bits of 2 t flipped.
                    let a = from.flipped(t as u32 * 32).ldmatrix_trans();
                    E::mma(&mut acc[s][t], a, operand);
                });
            });
        });
        acc
    }

    /// Returns the offset in a warp's ring of a sum: row `row` of the window, column `column` of a slab. Groups of
    /// eight columns are permuted so that four pairs of rows use different banks.
    #[inline(always)]
    fn place(slab: u32, row: u32, column: u32) -> u32 {
        (slab * WINDOW + row) * SLAB_COLUMNS * 4 + (column ^ (row / 2 * 8)) * 4
    }

    /// Stores a warp's sums in its ring.
    #[inline(always)]
    fn stage_sums(share: &Share, acc: &[Slab; SLABS]) {
        let (g, q) = (share.lane / 4, share.lane % 4);
        unroll!(s < SLABS, {
            unroll!(t < 4, {
                unroll!(i < 4, {
                    let (row, column) = (q * 2 + i as u32 % 2, t as u32 * 16 + i as u32 / 2 * 8);
                    let at = share.ring.bytes(Self::place(s as u32, row, column + g));
                    at.cast::<f32>().st(acc[s][t][i]);
                });
            });
        });
    }

    /// Adds the parts in order and stores the rows: 16 bytes a lane, eight lanes for 128 bytes of a row.
    #[inline(always)]
    fn write<E: MmaElem>(p: &VectorsParams, share: &Share) {
        let o = p.output();
        let mut item = share.part * 32 + share.lane;
        while item < SLABS as u32 * WINDOW * 8 {
            let (slab, within, chunk) = (item / 64, item / 8 % 8, item % 8);
            let row = share.window * WINDOW + within;
            let mut sum = [0f32; 8];
            let mut of = 0;
            while of < PARTS {
                let from = share.ring_of::<Self>(of);
                unroll!(half < 2, {
                    let column = chunk * 8 + half as u32 * 4;
                    let four =
                        from.bytes(Self::place(slab, within, column)).cast::<[u32; 4]>().ld();
                    unroll!(j < 4, { sum[half * 4 + j] += f32::from_bits(four[j]) });
                });
                of += 1;
            }
            if row < p.m {
                let own = share.filled >> within & 1;
                // The sum of a row without entries is zero, whatever B holds.
                let sum = sum.map(|x| if own != 0 { x } else { 0.0 });
                let column = share.left + slab * SLAB_COLUMNS + chunk * 8;
                let factors = (scale::<E>(o, own), row_bias::<E>(o, row));
                finish::<E, 8>(o, row, column, factors, sum);
            }
            item += PARTS * 32;
        }
    }
}

impl<W: WalkInfo, E: MmaElem, const SLABS: usize, const WINDOWS: u32, const PARTS: u32>
    Kernel<W, E, VectorsParams> for Vectors<SLABS, WINDOWS, PARTS>
{
    #[inline(always)]
    unsafe fn run(p: &VectorsParams, _at: Maps) {
        let share = Share::new::<Self>(p, E::BYTES);
        // With one part no thread waits for another. With several, every thread must reach the barrier.
        if PARTS == 1 && !share.inside {
            return;
        }
        let acc = Self::sum::<E>(p, &share);
        Self::stage_sums(&share, &acc);
        Share::sync::<Self>();
        if share.inside {
            Self::write::<E>(p, &share);
        }
    }
}
