//! Epilogue of `staged`: sums move through shared memory from one lane a row to eight lanes a row.

use super::{Acc, PIECES};
use crate::device::epilogue::{Output, finish, output, row_bias, scale};
use crate::device::prelude::*;
use crate::families::spmm::abi::*;

impl StagedParams {
    #[inline(always)]
    fn output(&self) -> Output {
        output!(self)
    }
}

/// Applies the epilogue to four neighbouring sums of a row and stores them. `row` is as in [`StagedParams::rows`].
#[inline(always)]
pub(super) fn put<E: Elem<Acc = f32>>(p: &StagedParams, row: u32, column: u32, sum: [f32; 4]) {
    let o = p.output();
    if row != u32::MAX {
        let len = u32::from(row & EMPTY_ROW == 0);
        let row = row & !EMPTY_ROW;
        let factors = (scale::<E>(o, len), row_bias::<E>(o, row));
        if p.flags & FLAG_VECTORS != 0 {
            finish::<E, 4>(o, row, column, factors, sum);
        } else {
            unroll!(j < 4, {
                finish::<E, 1>(o, row, column + j as u32, factors, [sum[j]]);
            });
        }
    }
}

/// Returns whether the epilogue is a scalar factor alone, with stores of four elements at once.
#[inline(always)]
pub(super) fn is_plain(p: &StagedParams) -> bool {
    p.flags
        & (FLAG_VECTORS
            | FLAG_ACCUMULATE
            | FLAG_BIAS_ROWS
            | FLAG_BIAS_COLUMNS
            | FLAG_RELU
            | FLAG_GELU)
        == FLAG_VECTORS
}

/// [`put`] if [`is_plain`]. Branch-free, so several can be in flight.
#[inline(always)]
pub(super) fn put_plain<E: Elem<Acc = f32>>(
    p: &StagedParams,
    row: u32,
    column: u32,
    sum: [f32; 4],
) {
    let factor = scale::<E>(p.output(), u32::from(row & EMPTY_ROW == 0));
    let at = (row & !EMPTY_ROW) as u64 * p.ldc_bytes as u64 + column as u64 * E::BYTES as u64;
    if row != u32::MAX && column < p.n {
        let out = sum.map(|x| E::add(E::fma(factor, x, 0.0), 0.0));
        p.c::<E>().bytes(at).st_rounded(&out);
    }
}

/// Stores a lane's sums at `row`, each piece at its position.
#[inline(always)]
pub(super) fn leave_row(acc: &Acc, row: u32) {
    let own = row + gpu::thread() % PIECES as u32 * 16;
    unroll!(t < PIECES, {
        let to = own ^ (t as u32 * 16);
        copy::st_shared_v4(to, acc[t].map(f32::to_bits));
    });
}

impl<const WARPS: u32, const PARTS: u32> Staged<WARPS, PARTS> {
    /// Bytes of the sums of a row, and of a slice.
    const SUMS: u32 = STAGED_ROW as u32;
    const SLICE_SUMS: u32 = SLICE as u32 * Self::SUMS;
    /// Lanes that store a row, four columns each.
    const LANES: u32 = STAGED_COLUMNS / 4;

    /// Stores this warp's sums to shared memory, a row for each lane.
    #[inline(always)]
    pub(super) fn stage_sums(acc: &Acc, warp: u32) {
        let lane = gpu::thread() % 32;
        let row = copy::dynamic_shared() + warp * Self::SLICE_SUMS + lane * Self::SUMS;
        leave_row(acc, row);
    }

    /// Starts the copy of the slice's row numbers early, so that the final stores do not wait for it.
    #[inline(always)]
    pub(super) fn fetch_rows(p: &StagedParams, slice: u32, warp: u32) {
        let lane = gpu::thread() % 32;
        if slice < p.slices && warp < WARPS && warp.is_multiple_of(PARTS) && lane < SLICE as u32 / 4
        {
            let from = p.rows().at(slice as u64 * SLICE as u64 + lane as u64 * 4);
            from.cp_async_16(Self::rows(warp) + lane * 16, 16);
        }
    }

    /// Shared address of the row numbers of this warp's slice.
    #[inline(always)]
    fn rows(warp: u32) -> u32 {
        copy::dynamic_shared() + Self::ROWS as u32 + warp / PARTS * SLICE as u32 * 4
    }

    /// Applies the epilogue to this warp's share of its slice's rows and stores them. If several warps share the slice,
    /// their sums are added in order.
    #[inline(always)]
    pub(super) fn write<E: Elem<Acc = f32>, const PLAIN: bool>(p: &StagedParams, warp: u32) {
        if Self::slice(warp) >= p.slices {
            return;
        }
        let lane = gpu::thread() % 32;
        let part = warp % PARTS;
        let rows = Self::rows(warp);
        let column = gpu::block_y() * Self::COLUMNS + lane % Self::LANES * 4;
        let first = part * (SLICE as u32 / PARTS) + lane / Self::LANES;
        let local = |i: u32| first + i * (32 / Self::LANES);
        let row = |i: u32| copy::ld_shared_b32(rows + local(i) * 4);
        if PLAIN || PARTS == 1 && is_plain(p) {
            // Several rows are read first, so that no row's loads wait for another row's store.
            let mut done = 0;
            while done < Self::TURNS {
                let (mut to, mut sums) = ([0; 4], [[0.0f32; 4]; 4]);
                unroll!(i < 4, {
                    if (i as u32) < Self::TURNS {
                        to[i] = row(done + i as u32);
                        sums[i] = Self::added::<E>(warp - part, local(done + i as u32));
                    }
                });
                unroll!(i < 4, {
                    if (i as u32) < Self::TURNS {
                        put_plain::<E>(p, to[i], column, sums[i]);
                    }
                });
                done += 4;
            }
        } else {
            let mut i = 0;
            while i < Self::TURNS {
                put::<E>(p, row(i), column, Self::added::<E>(warp - part, local(i)));
                i += 1;
            }
        }
    }

    /// Number of rows that a lane stores.
    const TURNS: u32 = SLICE as u32 / PARTS / (32 / Self::LANES);

    /// Returns this lane's four sums of row `local`, added in the order of the warps. `warp` is the first of them.
    #[inline(always)]
    fn added<E: Elem<Acc = f32>>(warp: u32, local: u32) -> [f32; 4] {
        let at = warp * Self::SLICE_SUMS + local * Self::SUMS;
        let from = copy::dynamic_shared() + at + gpu::thread() % Self::LANES * 16;
        let mut sum = [0.0f32; 4];
        unroll!(other < 8, {
            if (other as u32) < PARTS {
                let raw = copy::ld_shared_v4(from + other as u32 * Self::SLICE_SUMS);
                unroll!(j < 4, {
                    sum[j] = E::add(sum[j], f32::from_bits(raw[j]));
                });
            }
        });
        sum
    }
}
