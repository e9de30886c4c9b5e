//! Products of a warp for one stage: 32 channels of the input by 64 of the output.

use super::Sums;
use crate::device::prelude::*;
use crate::families::gather_gemm::conv::words::four;

/// Element type with the products of a stage.
pub trait PairElem: Elem<Acc = f32> {
    /// Returns row and column of an accumulator within a warp's tile.
    fn place(lane: u32, j: usize, i: usize) -> (u32, u32);
    /// Adds the products of share `deep` of the pairs. A row has `SIDE` words, and the gradient's rows follow the
    /// `PAIRS` rows of the input. `corner` is the first row and column of the warp's tile.
    fn multiply<const SIDE: usize, const PAIRS: usize>(
        sums: &mut Sums,
        stage: Shared<f32>,
        corner: (u32, u32),
        deep: u32,
    );
}

/// Returns the first pair of a share, and its end.
#[inline(always)]
fn share<const SIDE: usize, const PAIRS: usize>(deep: u32) -> (u32, u32) {
    let count = if SIDE == 64 { PAIRS / 4 } else { PAIRS } as u32;
    (deep * count, deep * count + count)
}

macro_rules! on_cuda_cores {
    ($($elem:ident)*) => {$(
        impl PairElem for $elem {
            #[inline(always)]
            fn place(lane: u32, j: usize, i: usize) -> (u32, u32) {
                (
                    lane / 8 * 4 + (j as u32 / 4) * 16 + j as u32 % 4,
                    lane % 8 * 4 + (i as u32 / 4) * 32 + i as u32 % 4,
                )
            }

            #[inline(always)]
            fn multiply<const SIDE: usize, const PAIRS: usize>(
                sums: &mut Sums,
                stage: Shared<f32>,
                (row, column): (u32, u32),
                deep: u32,
            ) {
                let lane = gpu::opaque_thread() % 32;
                let rows = stage.at(row + lane / 8 * 4);
                let columns = stage.at((PAIRS * SIDE) as u32 + column + lane % 8 * 4);
                let (mut k, end) = share::<SIDE, PAIRS>(deep);
                while k < end {
                    unroll!(u < 4, {
                        let line = (k + u as u32) * SIDE as u32;
                        // The copies swizzled the chunks of four channels by the pair.
                        let turn = u as u32 * 32;
                        let load = |from: Shared<f32>| four(from.flipped(turn));
                        let (rows, columns) = (rows.at(line), columns.at(line));
                        let (a, b) = (load(rows), load(rows.at(16)));
                        let (low, high) = (load(columns), load(columns.at(32)));
                        unroll!(j < 4, {
                            unroll!(i < 4, {
                                sums[j][i] = F32::fma(a[j], low[i], sums[j][i]);
                                sums[j][4 + i] = F32::fma(a[j], high[i], sums[j][4 + i]);
                                sums[4 + j][i] = F32::fma(b[j], low[i], sums[4 + j][i]);
                                sums[4 + j][4 + i] = F32::fma(b[j], high[i], sums[4 + j][4 + i]);
                            });
                        });
                    });
                    k += 4;
                }
            }
        }
    )*};
}

on_cuda_cores!(F32 F16 Bf16);

impl PairElem for Tf32 {
    /// `sums[j]` holds the accumulators of columns from `j * 8` on: of the upper 16 rows, then of the lower 16.
    #[inline(always)]
    fn place(lane: u32, j: usize, i: usize) -> (u32, u32) {
        let row = lane / 4 + (i as u32 / 4) * 16 + (i as u32 / 2 % 2) * 8;
        (row, j as u32 * 8 + lane % 4 * 2 + i as u32 % 2)
    }

    /// Reads both operands untransposed, with pairs as the depth, and rounds them.
    #[inline(always)]
    fn multiply<const SIDE: usize, const PAIRS: usize>(
        sums: &mut Sums,
        stage: Shared<f32>,
        (row, column): (u32, u32),
        deep: u32,
    ) {
        let lane = gpu::opaque_thread() % 32;
        let (pair, r) = (lane % 4, lane / 4);
        // This lane's channel of the eight of a fragment: 32 bytes, swizzled by the pair.
        let own = pair * SIDE as u32 * 4 + r * 4 + pair * 32;
        let rows = stage.bytes(own).at(row);
        let columns = stage.bytes(own).at((PAIRS * SIDE) as u32 + column);
        let load = |at: Shared<f32>| matrix::cvt_rna_tf32(at.cast::<u32>().ld());
        let (mut k, end) = share::<SIDE, PAIRS>(deep);
        while k < end {
            let line = k * SIDE as u32;
            let later = 4 * SIDE as u32;
            let mut a = [[0u32; 4]; 2];
            unroll!(m < 2, {
                unroll!(h < 2, {
                    let at = rows.at(line).flipped(((m * 2 + h) * 32) as u32);
                    a[m][h] = load(at);
                    a[m][2 + h] = load(at.at(later));
                });
            });
            unroll!(j < 8, {
                let at = columns.at(line).flipped((j % 4 * 32) as u32).bytes((j / 4 * 128) as u32);
                let b = [load(at), load(at.at(later))];
                unroll!(m < 2, {
                    let mut four = [0, 1, 2, 3].map(|i| sums[j][m * 4 + i]);
                    matrix::mma_tf32(&mut four, a[m], b);
                    unroll!(i < 4, {
                        sums[j][m * 4 + i] = four[i];
                    });
                });
            });
            k += 8;
        }
    }
}
