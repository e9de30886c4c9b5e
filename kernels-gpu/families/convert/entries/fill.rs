//! Slots of GroupCOO and ELL from CSR, and values through a permutation, with four elements in flight per thread.

use crate::device::prelude::*;
use crate::families::convert::abi::*;

const PAD: u32 = u32::MAX;

impl<W: WalkInfo, E: Elem> Kernel<W, E, EntriesParams> for FillSlots {
    #[inline(always)]
    unsafe fn run(p: &EntriesParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let ell = p.flags & FILL_ELL != 0;
        let used = if ell {
            p.capacity as u64
        } else {
            let groups = p.starts().at(p.m).ld();
            (groups as u64 * p.group.value as u64).min(p.capacity as u64)
        };
        let base = gpu::block_x() as u64 * (4 * SCAN_THREADS) as u64 + gpu::thread() as u64;
        let mut from = [0u32; 4];
        let mut filled = [false; 4];
        unroll!(i < 4, {
            let slot = base + i as u64 * SCAN_THREADS as u64;
            let valid = slot < used;
            let (group, offset) = p.group.of(slot as u32);
            let (row, before) = if ell {
                (group, 0)
            } else {
                let row = p.rows().at(group).ld_if(valid);
                let start = p.starts().at(row).ld_if(valid);
                (row, group.wrapping_sub(start).wrapping_mul(p.group.value))
            };
            let start = p.offsets().at(row).ld_if(valid);
            let end = p.offsets().at(row as u64 + 1).ld_if(valid);
            from[i] = start.wrapping_add(before).wrapping_add(offset);
            filled[i] = valid && from[i] < end;
        });
        let mut columns = [0u32; 4];
        let mut values = [[0u32; 4]; 4];
        unroll!(i < 4, {
            // SAFETY: no step writes CSR. The positions were loaded after the wait.
            let (column, source) =
                unsafe { (p.columns().with::<ReadOnly>(), p.source::<E>().with::<ReadOnly>()) };
            columns[i] = column.at(from[i]).ld_if(filled[i]);
            values[i] = source.at(from[i]).ld_raw::<1>(filled[i]);
        });
        unroll!(i < 4, {
            let slot = base + i as u64 * SCAN_THREADS as u64;
            if slot < used {
                let column = if filled[i] { columns[i] } else { PAD };
                p.out_columns().at(slot).st(column);
                p.out_values::<E>().at(slot).st_raw(values[i]);
            }
        });
    }
}

impl<W: WalkInfo, E: Elem> Kernel<W, E, EntriesParams> for PermuteValues {
    #[inline(always)]
    unsafe fn run(p: &EntriesParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let base = gpu::block_x() as u64 * (4 * SCAN_THREADS) as u64 + gpu::thread() as u64;
        let mut from = [0u32; 4];
        let mut values = [[0u32; 4]; 4];
        unroll!(i < 4, {
            let at = base + i as u64 * SCAN_THREADS as u64;
            from[i] = p.first().at(at).ld_if(at < p.count as u64);
        });
        unroll!(i < 4, {
            let at = base + i as u64 * SCAN_THREADS as u64;
            // SAFETY: `permute` of the host starts this launch after the end of the preceding one.
            let source = unsafe { p.source::<E>().with::<ReadOnly>() };
            values[i] = source.at(from[i]).ld_raw::<1>(at < p.count as u64);
        });
        unroll!(i < 4, {
            let at = base + i as u64 * SCAN_THREADS as u64;
            if at < p.count as u64 {
                p.out_values::<E>().at(at).st_raw(values[i]);
            }
        });
    }
}
