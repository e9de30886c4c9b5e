//! Epilogue: scalar, bias, activation, and stores to scattered rows of the output. 16-bit sums pass through shared
//! memory, so that eight lanes store 128 bytes of a row. A warp uses only its own 2 KB of its half's buffer, so
//! warp barriers order its accesses.

use super::Gathered;
use crate::device::prelude::*;
use crate::device::store::chunk::{ROWS, stage_rows, staged};
use crate::families::gather_gemm::abi::*;

impl<const CHUNKS: usize, F: GatheredForm> Gathered<CHUNKS, F> {
    /// Stores 64 rows: a half of the tile. `any`: whether there was any product.
    #[inline(always)]
    pub(super) fn epilogue<E: Elem<Acc = f32>>(
        p: &ConvParams,
        tile: u32,
        half: u32,
        any: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        let (lane, warp) = gpu::lane_and_warp();
        let left = gpu::block_y() * Self::COLUMNS;
        let top = tile * CONV_ROWS as u32 + half * CONV_HALF as u32 + warp * 16;
        let alpha = if any != 0 { p.alpha } else { 0.0 };
        let flags = warp::opaque(p.flags);
        Self::finish::<E>(p, flags, left + lane % 4 * 2, alpha, acc);
        if E::BYTES == 2 && flags & (FLAG_VECTORS | FLAG_ACCUMULATE) == FLAG_VECTORS {
            // SAFETY: `SHARED_BYTES` of the tile includes both output buffers, if elements have 2 bytes.
            let smem = unsafe { Shared::dynamic(Self::OUT as u32 + half * SMEM_TILE as u32) };
            Self::store::<E>(p, top, left, smem.bytes(warp * 2048), acc);
        } else {
            unroll!(r < 2, {
                let position = top + frag::accumulator(lane, 0).0 + r as u32 * 8;
                let row = p.order().at(position).ld();
                if row != CONV_ABSENT {
                    let line = p.out().row(row, p.out_bytes).cast();
                    Self::store_row::<E>(p, flags, line, left + lane % 4 * 2, r, acc);
                }
            });
        }
    }

    #[inline(always)]
    fn finish<E: Elem<Acc = f32>>(
        p: &ConvParams,
        flags: u32,
        column: u32,
        alpha: f32,
        acc: &mut Acc<CHUNKS>,
    ) {
        if alpha != 1.0 {
            unroll!(c < CHUNKS, most 4, {
                unroll!(j < 8, {
                    unroll!(i < 4, {
                        acc.0[c][4 * j + i] = E::mul(alpha, acc.0[c][4 * j + i]);
                    });
                });
            });
        }
        if flags & (FLAG_BIAS_COLUMNS | FLAG_RELU) == 0 {
            return;
        }
        // SAFETY: this kernel starts after the preceding launch, and stores only to the output,
        // which is not the bias.
        let bias = unsafe { p.bias().cast::<E>().with::<ReadOnly>() };
        unroll!(c < CHUNKS, most 4, {
            unroll!(j < 8, {
                if flags & FLAG_BIAS_COLUMNS != 0 {
                    unroll!(i < 4, {
                        let column = column + (c * 64 + j * 8 + i % 2) as u32;
                        let raw = bias.at(column).ld_raw::<1>(column < p.n);
                        acc.0[c][4 * j + i] += E::get(&raw, 0);
                    });
                }
                if flags & FLAG_RELU != 0 {
                    unroll!(i < 4, {
                        acc.0[c][4 * j + i] = E::relu(acc.0[c][4 * j + i]);
                    });
                }
            });
        });
    }

    /// Stores one row: in pairs if rows of C allow vectors of 16 bytes, otherwise element by element.
    #[inline(always)]
    fn store_row<E: Elem<Acc = f32>>(
        p: &ConvParams,
        flags: u32,
        line: Global<E, ReadWrite>,
        column: u32,
        r: usize,
        acc: &Acc<CHUNKS>,
    ) {
        unroll!(c < CHUNKS, most 4, {
            unroll!(j < 8, {
                let column = column + (c * 64 + j * 8) as u32;
                let at = line.at(column);
                let k = 4 * j + ROWS[r];
                if flags & (FLAG_VECTORS | FLAG_ACCUMULATE) == FLAG_VECTORS {
                    if column < p.n {
                        at.st_rounded(&[acc.0[c][k], acc.0[c][k + 1]]);
                    }
                } else {
                    unroll!(i < 2, {
                        let at = at.at(i as u64);
                        let inside = column + (i as u32) < p.n;
                        let old = at.ld_raw::<1>(inside && flags & FLAG_ACCUMULATE != 0);
                        if inside {
                            at.st_rounded(&[acc.0[c][k + i] + E::get(&old, 0)]);
                        }
                    });
                }
            });
        });
    }

    /// Stores chunks of 64 columns through shared memory, as rows of 128 bytes. Each warp stores its own 16 rows.
    #[inline(always)]
    fn store<E: Elem<Acc = f32>>(
        p: &ConvParams,
        top: u32,
        left: u32,
        smem: Shared<u8>,
        acc: &Acc<CHUNKS>,
    ) {
        let lane = gpu::opaque_thread() % 32;
        let own = frag::ldmatrix_x4(lane);
        let column = left + lane % 8 * 8;
        unroll!(c < CHUNKS, most 4, {
            warp::sync(u32::MAX);
            stage_rows::<E>(&acc.0[c], smem, own);
            warp::sync(u32::MAX);
            unroll!(j < 4, {
                let position = j as u32 * 4 + lane / 8;
                let row = p.order().at(top + position).ld();
                let eight = staged(smem, position, lane);
                let column = column + c as u32 * 64;
                if row != CONV_ABSENT && column < p.n {
                    let at = p.out().row(row, p.out_bytes).cast::<u16>().at(column);
                    at.cast::<[u32; 4]>().st(eight);
                }
            });
        });
    }
}
