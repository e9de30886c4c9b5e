//! Sums of slices that several warps share: joined within a thread block, then across those of a cluster, and stored to
//! C.

use super::out::{four, put_units};
use super::resident::UNITS;
use super::{ACROSS, UNIT_ROWS, shared};
use crate::device::prelude::*;
use crate::families::spmm::abi::*;

impl<const WARPS: u32> Resident<WARPS> {
    /// Returns the thread block's [`StagedSpan`].
    #[inline(always)]
    pub(super) fn span() -> Shared<[u32; 4]> {
        shared().bytes(Self::SPAN).cast()
    }

    /// Starts the copies that the joins need: this thread block's span, and its joins with their rows.
    #[inline(always)]
    pub(super) fn prepare_joins(p: &StagedParams, [first, count, before, behind]: [u32; 4]) {
        let thread = gpu::thread();
        if thread == 0 {
            Self::span().st([first, count, before, behind]);
        }
        const PARTS: u32 = size_of::<StagedJoin>() as u32 / 16;
        if thread < count * PARTS {
            let from = p.joins().at(first * PARTS + thread);
            from.cp_async_16(Self::join_at(0).at(thread), 16);
        }
    }

    /// Adds the sums that several warps of this thread block have of a join's slice, in order. Returns this lane's four
    /// of row `local`, and of the next `N - 1` units.
    #[inline(always)]
    fn added<E: Elem<Acc = f32>, const N: usize>(
        join: Shared<[u32; 4]>,
        local: u32,
    ) -> [[f32; 4]; N] {
        let [warp, warps, end, _] = join.ld();
        let within = four(shared(), local);
        let mut sums = [[0.0f32; 4]; N];
        let mut other = 0;
        while other < warps {
            let ended = end != 0 && other + 1 == warps;
            let region = if ended { Self::ENDS } else { 0 };
            let from = within.bytes(region).bytes((warp + other) * SLICE_SUMS);
            let mut raw = [[0; 4]; N];
            unroll!(i < N, {
                raw[i] = from.bytes(i as u32 * UNIT_ROWS * STAGED_ROW).ld();
            });
            unroll!(i < N, {
                unroll!(j < 4, {
                    sums[i][j] = E::add(sums[i][j], f32::from_bits(raw[i][j]));
                });
            });
            other += 1;
        }
        sums
    }

    /// Stores this thread block's sums of the slices that cross to other thread blocks (its first join, its last, or
    /// both), for [`Self::join_cluster`].
    #[inline(always)]
    pub(super) fn join_crossing<E: Elem<Acc = f32>>(joins: u32, crossing: [u32; 2]) {
        let (warp, lane) = (gpu::thread() / 32, gpu::thread() % 32);
        let which = warp / UNITS;
        if which < 2 && Self::of(which, crossing) != 0 {
            let local = warp % UNITS * UNIT_ROWS + lane / ACROSS;
            let join = Self::join_at(if which == 0 { 0 } else { joins - 1 });
            let [sum] = Self::added::<E, 1>(join, local);
            four(Self::left(which), local).st(sum.map(f32::to_bits));
        }
    }

    /// Adds and stores the slices that several warps of this thread block share, and no other thread block. Each warp
    /// takes some rows of a slice at a time.
    #[inline(always)]
    pub(super) fn join<E: Elem<Acc = f32>, const PLAIN: bool>(
        p: &StagedParams,
        joins: u32,
        crossing: [u32; 2],
    ) {
        const TOGETHER: u32 = 4;
        let lane = gpu::thread() % 32;
        let first = u32::from(crossing[0] != 0) * (UNITS / TOGETHER);
        let end = (joins - u32::from(crossing[1] != 0)) * (UNITS / TOGETHER);
        let mut part = first + gpu::thread() / 32;
        while part < end {
            let join = Self::join_at(part / (UNITS / TOGETHER));
            let unit = part % (UNITS / TOGETHER) * TOGETHER;
            let local = unit * UNIT_ROWS + lane / ACROSS;
            let units = (local, TOGETHER);
            if PLAIN {
                let sums = Self::added::<E, { TOGETHER as usize }>(join, local);
                put_units::<E, true>(p, Self::rows(join), units, |unit| sums[unit as usize]);
            } else {
                put_units::<E, false>(p, Self::rows(join), units, |unit| {
                    let [sum] = Self::added::<E, 1>(join, local + unit * UNIT_ROWS);
                    sum
                });
            }
            part += WARPS;
        }
    }

    #[inline(always)]
    fn of(which: u32, crossing: [u32; 2]) -> u32 {
        if which == 0 { crossing[0] } else { crossing[1] }
    }

    #[inline(always)]
    fn join_at(join: u32) -> Shared<[u32; 4]> {
        shared().bytes(Self::JOINS).bytes(join * size_of::<StagedJoin>() as u32).cast()
    }

    /// Returns the row numbers of a join.
    #[inline(always)]
    fn rows(join: Shared<[u32; 4]>) -> Shared<u32> {
        join.bytes(JOIN_HEAD).cast()
    }

    /// Returns a thread block's sums of a crossing slice: 0 for the one that began earlier, 1 for the one that later
    /// thread blocks continue.
    #[inline(always)]
    fn left(which: u32) -> Shared<u8> {
        shared().bytes((WARPS + which) * SLICE_SUMS)
    }

    /// Adds the sums of slices that several thread blocks of the cluster share, in order. Each of them stores some
    /// rows.
    #[inline(always)]
    pub(super) fn join_cluster<E: Elem<Acc = f32>, const PLAIN: bool>(
        p: &StagedParams,
        joins: u32,
        crossing: [u32; 2],
    ) {
        let (warp, lane) = (gpu::thread() / 32, gpu::thread() % 32);
        let (which, unit) = (warp / UNITS, warp % UNITS);
        if which < 2 {
            let word = Self::of(which, crossing);
            let [first, blocks, own] = [word & 0xff, word >> 8 & 0xff, word >> 16];
            if blocks > 0 && unit % blocks == own {
                let local = unit * UNIT_ROWS + lane / ACROSS;
                let mut raw = [[0u32; 4]; MAX_CLUSTER];
                unroll!(i < MAX_CLUSTER, {
                    if (i as u32) < blocks {
                        let from = four(Self::left(u32::from(i == 0)), local);
                        raw[i] = from.remote(first + i as u32).ld();
                    }
                });
                let mut sum = [0.0f32; 4];
                unroll!(i < MAX_CLUSTER, {
                    if (i as u32) < blocks {
                        unroll!(j < 4, {
                            sum[j] = E::add(sum[j], f32::from_bits(raw[i][j]));
                        });
                    }
                });
                // Completes the loads here, not at the stores: other thread blocks may exit after this one has arrived.
                warp::ballot(sum[0] != 0.0);
                let join = Self::join_at(if which == 0 { 0 } else { joins - 1 });
                put_units::<E, PLAIN>(p, Self::rows(join), (local, 1), |_| sum);
            }
        }
    }
}
