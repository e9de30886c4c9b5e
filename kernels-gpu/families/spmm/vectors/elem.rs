//! Tensor Core atoms by element type: the layout of a stage in shared memory, and the conversion of entries to an
//! operand.

use super::Slab;
use crate::device::mma::MmaElem;
use crate::device::prelude::*;
use crate::families::spmm::abi::*;

/// Element type with its atom. A lane holds four neighbouring vectors of a step, so that their entries are neighbours
/// too. `place` gives the order in which the atom reads them along k.
pub trait VectorElem: MmaElem + Sized {
    /// Returns the row of a stage that stores vector `4 q + j`.
    fn place(q: u32, j: u32) -> u32;
    /// Returns the byte offset of a 16-byte chunk of a row of a slab.
    fn chunk(row: u32, chunk: u32) -> u32;
    /// Starts the loads of up to four entries from number `index` on. Bit j of `valid`: vector j has an entry.
    fn entries(values: Global<Self, ReadOnly>, index: u64, valid: u32) -> ([u32; 4], u32);
    /// Returns four vectors' entries in the atom's layout, with zero if there is no entry.
    fn operand(raw: [u32; 4], first: u32, valid: u32) -> [u32; LANE_VECTORS];
    /// Adds a step to a slab's accumulators; `at` is the address of the slab in the stage.
    fn step(acc: &mut Slab, at: u32, lane: u32, operand: [u32; LANE_VECTORS]);
}

macro_rules! half_vectors {
    ($elem:ident) => {
        impl VectorElem for $elem {
            #[inline(always)]
            fn place(q: u32, j: u32) -> u32 {
                q * 2 + j % 2 + j / 2 * 8
            }
            #[inline(always)]
            fn chunk(row: u32, chunk: u32) -> u32 {
                frag::swizzle(row, chunk, SLAB_BYTES as u32)
            }
            /// Loads the aligned 8-byte words that contain the entries, at most two, because each load is an L1 look-up
            /// in eight rows.
            #[inline(always)]
            fn entries(values: Global<Self, ReadOnly>, index: u64, valid: u32) -> ([u32; 4], u32) {
                let (count, first) = (valid.count_ones(), index as u32 & 3);
                let at = values.at(index & !3).cast::<[u32; 2]>();
                let [a, b] = at.ld_if(count > 0);
                let [c, d] = at.at(1u32).ld_if(first + count > 4);
                ([a, b, c, d], first)
            }
            #[inline(always)]
            fn operand(raw: [u32; 4], first: u32, valid: u32) -> [u32; LANE_VECTORS] {
                let [mut a, mut b, mut c, d] = raw;
                if first & 2 != 0 {
                    (a, b, c) = (b, c, d);
                }
                let half = 0x3210 + (first & 1) * 0x2222;
                let (low, high) = (matrix::prmt(a, b, half), matrix::prmt(b, c, half));
                // The number of entries before that of vector j is the number of bits below bit j.
                let (b0, b1, b2) = (valid & 1, valid >> 1 & 1, valid >> 2 & 1);
                let pair = |one: u32, two: u32| 0x1010 + one * 0x22 + two * 0x2200;
                let mask = |bits: u32| (bits & 1) * 0xffff | (bits >> 1 & 1) * 0xffff_0000;
                [
                    matrix::prmt(low, high, pair(0, b0)) & mask(valid),
                    matrix::prmt(low, high, pair(b0 + b1, b0 + b1 + b2)) & mask(valid >> 2),
                    0,
                    0,
                ]
            }
            #[inline(always)]
            fn step(acc: &mut Slab, at: u32, lane: u32, v: [u32; LANE_VECTORS]) {
                // Matrices 0 and 2 are rows 0 to 7 and 8 to 15 of a chunk, matrices 1 and 3 those of the next chunk.
                let row = lane % 8 + lane / 16 * 8;
                let from = at + Self::chunk(row, lane / 8 % 2);
                unroll!(t < 4, {
                    // The address of chunk 2 t + c is that of chunk c with the bits of 2 t flipped.
                    let a = matrix::ldmatrix_x4_trans(from ^ (t as u32 * 32));
                    <Self as MmaElem>::mma(&mut acc[t], a, [v[0], v[1]]);
                });
            }
        }
    };
}

half_vectors!(F16);
half_vectors!(Bf16);

impl VectorElem for Tf32 {
    #[inline(always)]
    fn place(q: u32, j: u32) -> u32 {
        q + j % 2 * 4 + j / 2 * 8
    }
    /// Four neighbouring rows, of two chunks each, are in different banks.
    #[inline(always)]
    fn chunk(row: u32, chunk: u32) -> u32 {
        frag::swizzle(0, chunk ^ ((row * 2) & 7), SLAB_BYTES as u32) + row * SLAB_BYTES as u32
    }
    #[inline(always)]
    fn entries(values: Global<Self, ReadOnly>, index: u64, valid: u32) -> ([u32; 4], u32) {
        let mut raw = [0; 4];
        unroll!(j < 4, {
            let before = valid & ((1 << j) - 1);
            let at = values.at(index + before.count_ones() as u64).cast::<u32>();
            raw[j] = at.ld_if(valid >> j & 1 != 0);
        });
        (raw, 0)
    }
    #[inline(always)]
    fn operand(raw: [u32; 4], _first: u32, _there: u32) -> [u32; LANE_VECTORS] {
        raw.map(matrix::cvt_rna_tf32)
    }
    #[inline(always)]
    fn step(acc: &mut Slab, at: u32, lane: u32, v: [u32; LANE_VECTORS]) {
        let (g, q) = (lane / 4, lane % 4);
        let load = |row: u32, column: u32| {
            let from = at + Self::chunk(row, column / 4) + column % 4 * 4;
            matrix::cvt_rna_tf32(copy::ld_shared_b32(from))
        };
        // Two atoms of eight vectors.
        unroll!(half < 2, {
            unroll!(t < 2, {
                let (row, column) = (half as u32 * 8 + q, t as u32 * 16 + g);
                let a = [
                    load(row, column),
                    load(row, column + 8),
                    load(row + 4, column),
                    load(row + 4, column + 8),
                ];
                Self::mma(&mut acc[t], a, [v[2 * half], v[2 * half + 1]]);
            });
        });
    }
}
