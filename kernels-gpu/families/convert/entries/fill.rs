//! Slots of GroupCOO and ELL from CSR, and values through a permutation, with four elements in flight per thread.

use super::word;
use crate::device::prelude::*;
use crate::families::convert::abi::*;

const PAD: u32 = u32::MAX;

impl<W: WalkInfo, E: Elem> Kernel<W, E, EntriesParams> for FillSlots {
    #[inline(always)]
    unsafe fn run(p: &EntriesParams, _at: u64) {
        grid::launch_dependents();
        grid::wait_dependency();
        let ell = p.flags & FILL_ELL != 0;
        let used = if ell {
            p.capacity as u64
        } else {
            let groups = global::ld_cg_b32(word(p.starts, p.m as u64), true);
            (groups as u64 * p.group.value as u64).min(p.capacity as u64)
        };
        let base = gpu::block_x() as u64 * (4 * SCAN_THREADS) as u64 + gpu::thread() as u64;
        let mut from = [0u32; 4];
        let mut filled = [false; 4];
        unroll!(i < 4, {
            let slot = base + i as u64 * SCAN_THREADS as u64;
            let valid = slot < used;
            let (group, beside) = p.group.of(slot as u32);
            let (row, before) = if ell {
                (group, 0)
            } else {
                let row = global::ld_cg_b32(word(p.rows, group as u64), valid);
                let start = global::ld_cg_b32(word(p.starts, row as u64), valid);
                (row, group.wrapping_sub(start).wrapping_mul(p.group.value))
            };
            let start = global::ld_cg_b32(word(p.offsets, row as u64), valid);
            let end = global::ld_cg_b32(word(p.offsets, row as u64 + 1), valid);
            from[i] = start.wrapping_add(before).wrapping_add(beside);
            filled[i] = valid && from[i] < end;
        });
        let mut columns = [0u32; 4];
        let mut values = [[0u32; 4]; 4];
        unroll!(i < 4, {
            let at = from[i] as u64;
            columns[i] = global::ld_nc_b32(word(p.columns, at), filled[i]);
            values[i] = E::ld_nc::<1>(p.source + at * E::BYTES as u64, filled[i]);
        });
        unroll!(i < 4, {
            let slot = base + i as u64 * SCAN_THREADS as u64;
            if slot < used {
                let column = if filled[i] { columns[i] } else { PAD };
                global::st_b32(word(p.out_columns, slot), column);
                E::store_raw(p.out_values + slot * E::BYTES as u64, values[i]);
            }
        });
    }
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, EntriesParams> for PermuteValues {
    #[inline(always)]
    unsafe fn run(p: &EntriesParams, _at: u64) {
        grid::launch_dependents();
        grid::wait_dependency();
        let base = gpu::block_x() as u64 * (4 * SCAN_THREADS) as u64 + gpu::thread() as u64;
        let mut from = [0u32; 4];
        let mut values = [[0u32; 4]; 4];
        unroll!(i < 4, {
            let at = base + i as u64 * SCAN_THREADS as u64;
            from[i] = global::ld_cg_b32(word(p.first, at), at < p.count as u64);
        });
        unroll!(i < 4, {
            let at = base + i as u64 * SCAN_THREADS as u64;
            let value = p.source + from[i] as u64 * E::BYTES as u64;
            values[i] = E::ld_nc::<1>(value, at < p.count as u64);
        });
        unroll!(i < 4, {
            let at = base + i as u64 * SCAN_THREADS as u64;
            if at < p.count as u64 {
                E::store_raw(p.out_values + at * E::BYTES as u64, values[i]);
            }
        });
    }
}
