//! Epilogue of `staged`: sums move through shared memory from one lane a row to eight lanes a row.

use super::{ACROSS, Acc, PIECES, UNIT_ROWS, shared};
use crate::device::epilogue::{Output, output, scale};
use crate::device::prelude::*;
use crate::families::spmm::abi::*;
use crate::families::spmm::chunk::put_row;

impl StagedParams {
    #[inline(always)]
    fn output(&self) -> Output {
        output!(self)
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

/// [`put_row`] if [`is_plain`]. Branch-free, so several can be in flight.
#[inline(always)]
fn put_plain<E: Elem<Acc = f32>>(p: &StagedParams, row: u32, column: u32, sum: [f32; 4]) {
    let factor = scale::<E>(p.output(), u32::from(row & EMPTY_ROW == 0));
    let at = (row & !EMPTY_ROW) as u64 * p.ldc_bytes as u64 + column as u64 * E::BYTES as u64;
    if row != u32::MAX && column < p.n {
        let out = sum.map(|x| E::add(E::fma(factor, x, 0.0), 0.0));
        p.c::<E>().bytes(at).st_rounded(&out);
    }
}

/// Applies the epilogue to `units` units (up to 8) of a slice from row `first` on, and stores them. `rows` are the
/// slice's row numbers. `sum` returns this lane's four sums of a unit.
#[inline(always)]
pub(super) fn put_units<E: Elem<Acc = f32>, const PLAIN: bool>(
    p: &StagedParams,
    rows: Shared<u32>,
    (first, units): (u32, u32),
    sum: impl Fn(u32) -> [f32; 4],
) {
    let column = gpu::block_y() * STAGED_COLUMNS + gpu::thread() % ACROSS * 4;
    let row = |unit: u32| rows.at(first + unit * UNIT_ROWS).ld();
    if PLAIN {
        // All rows are read first, so that no row's loads wait for another row's store.
        let (mut to, mut sums) = ([0; 8], [[0.0f32; 4]; 8]);
        unroll!(i < 8, {
            if (i as u32) < units {
                to[i] = row(i as u32);
                sums[i] = sum(i as u32);
            }
        });
        unroll!(i < 8, {
            if (i as u32) < units {
                put_plain::<E>(p, to[i], column, sums[i]);
            }
        });
    } else {
        let mut unit = 0;
        while unit < units {
            put_row::<E, 4>(|| p.output(), row(unit), column, sum(unit));
            unit += 1;
        }
    }
}

/// Stores the sums of a slice, a row for each lane and each piece at its position.
#[inline(always)]
pub(super) fn stage_sums(acc: &Acc, slice: Shared<u8>) {
    let lane = gpu::thread() % 32;
    let own = slice.bytes(lane * STAGED_ROW).cast::<[u32; 4]>().at(lane % PIECES as u32);
    unroll!(t < PIECES, { own.flipped(t as u32 * 16).st(acc[t].map(f32::to_bits)) });
}

/// Returns the address of this lane's four sums of row `local` of a slice.
#[inline(always)]
pub(super) fn four(slice: Shared<u8>, local: u32) -> Shared<[u32; 4]> {
    slice.bytes(local * STAGED_ROW).cast().at(gpu::thread() % ACROSS)
}

impl<const WARPS: u32, const PARTS: u32> Staged<WARPS, PARTS> {
    /// Returns a warp's sums in shared memory.
    #[inline(always)]
    pub(super) fn sums(warp: u32) -> Shared<u8> {
        shared().bytes(warp * SLICE_SUMS)
    }

    /// Starts the copy of the slice's row numbers early, so that the final stores do not wait for it.
    #[inline(always)]
    pub(super) fn fetch_rows(p: &StagedParams, slice: u32, warp: u32) {
        let lane = gpu::thread() % 32;
        if slice < p.slices && warp < WARPS && warp.is_multiple_of(PARTS) && lane < SLICE as u32 / 4
        {
            let from = p.rows().at(slice as u64 * SLICE as u64 + lane as u64 * 4);
            from.cp_async_16(Self::rows(warp).at(lane * 4), 16);
        }
    }

    /// Returns the row numbers of this warp's slice.
    #[inline(always)]
    fn rows(warp: u32) -> Shared<u32> {
        shared().bytes(Self::ROWS).cast().at(warp / PARTS * SLICE as u32)
    }

    /// Applies the epilogue to this warp's share of its slice's rows and stores them. If several warps share the slice,
    /// their sums are added in order.
    #[inline(always)]
    pub(super) fn write<E: Elem<Acc = f32>, const PLAIN: bool>(p: &StagedParams, warp: u32) {
        /// Units of a slice.
        const UNITS: u32 = SLICE as u32 / UNIT_ROWS;
        if Self::slice(warp) >= p.slices {
            return;
        }
        let (part, rows, units) = (warp % PARTS, Self::rows(warp), UNITS / PARTS);
        let first = part * (SLICE as u32 / PARTS) + gpu::thread() % 32 / ACROSS;
        let sum = |unit: u32| Self::added::<E>(warp - part, first + unit * UNIT_ROWS);
        if PLAIN || PARTS == 1 && is_plain(p) {
            let mut done = 0;
            while done < units {
                let four = (first + done * UNIT_ROWS, units.min(4));
                put_units::<E, true>(p, rows, four, |unit| sum(done + unit));
                done += 4;
            }
        } else {
            put_units::<E, false>(p, rows, (first, units), sum);
        }
    }

    /// Returns this lane's four sums of row `local`, added in the order of the warps. `warp` is the first of them.
    #[inline(always)]
    fn added<E: Elem<Acc = f32>>(warp: u32, local: u32) -> [f32; 4] {
        let mut sum = [0.0f32; 4];
        unroll!(other < 8, {
            if (other as u32) < PARTS {
                let raw = four(Self::sums(warp + other as u32), local).ld();
                unroll!(j < 4, { sum[j] = E::add(sum[j], f32::from_bits(raw[j])) });
            }
        });
        sum
    }
}
