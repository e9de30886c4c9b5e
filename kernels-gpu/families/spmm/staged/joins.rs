//! Sums of slices that several warps share: joined within a thread block, then across those of a cluster, and stored to
//! C.

use super::resident::{ACROSS, UNIT_ROWS, UNITS};
use crate::device::prelude::*;
use crate::families::spmm::abi::*;

impl<const WARPS: u32> Resident<WARPS> {
    /// Starts the copies that the joins need: this thread block's span, and its joins with their rows.
    #[inline(always)]
    pub(super) fn prepare_joins(p: &StagedParams, [first, count, before, behind]: [u32; 4]) {
        let thread = gpu::thread();
        if thread == 0 {
            let to = copy::dynamic_shared() + Self::SPAN as u32;
            copy::st_shared_v4(to, [first, count, before, behind]);
        }
        const PARTS: u32 = size_of::<StagedJoin>() as u32 / 16;
        if thread < count * PARTS {
            let from = p.joins().at(first * PARTS + thread);
            from.cp_async_16(copy::dynamic_shared() + Self::JOINS as u32 + thread * 16, 16);
        }
    }

    /// Adds the sums that several warps of this thread block have of a join's slice, in order. Returns this lane's four
    /// of row `local`, and of the next `N - 1` units.
    #[inline(always)]
    fn added<E: Elem<Acc = f32>, const N: usize>(join: u32, local: u32) -> [[f32; 4]; N] {
        let [warp, warps, end, _] = copy::ld_shared_v4(join);
        let within = copy::dynamic_shared() + Self::four(local);
        let mut sums = [[0.0f32; 4]; N];
        let mut other = 0;
        while other < warps {
            let ended = end != 0 && other + 1 == warps;
            let region = if ended { Self::ENDS as u32 } else { 0 };
            let from = within + region + (warp + other) * Self::SLICE_SUMS as u32;
            let mut raw = [[0; 4]; N];
            unroll!(i < N, {
                raw[i] = copy::ld_shared_v4(from + i as u32 * UNIT_ROWS * Self::SUMS as u32);
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
            let to = Self::left(which) + Self::four(local);
            copy::st_shared_v4(to, sum.map(f32::to_bits));
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
            let rows = join + JOIN_HEAD as u32;
            if PLAIN {
                let sums = Self::added::<E, { TOGETHER as usize }>(join, local);
                Self::put_plain::<E, { TOGETHER as usize }>(p, rows, local, &sums);
            } else {
                let mut i = 0;
                while i < TOGETHER {
                    let local = local + i * UNIT_ROWS;
                    let [sum] = Self::added::<E, 1>(join, local);
                    Self::put_one::<E>(p, rows, local, sum);
                    i += 1;
                }
            }
            part += WARPS;
        }
    }

    #[inline(always)]
    fn of(which: u32, crossing: [u32; 2]) -> u32 {
        if which == 0 { crossing[0] } else { crossing[1] }
    }

    #[inline(always)]
    fn join_at(join: u32) -> u32 {
        copy::dynamic_shared() + Self::JOINS as u32 + join * size_of::<StagedJoin>() as u32
    }

    /// Shared address of a thread block's sums of a crossing slice: 0 for the one that began earlier, 1 for the one
    /// that later thread blocks continue.
    #[inline(always)]
    fn left(which: u32) -> u32 {
        copy::dynamic_shared() + (WARPS + which) * Self::SLICE_SUMS as u32
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
                        let from = Self::left(u32::from(i == 0)) + Self::four(local);
                        raw[i] = cluster::ld_v4(cluster::mapa(from, first + i as u32));
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
                if PLAIN {
                    Self::put_plain::<E, 1>(p, join + JOIN_HEAD as u32, local, &[sum]);
                } else {
                    Self::put_one::<E>(p, join + JOIN_HEAD as u32, local, sum);
                }
            }
        }
    }
}
