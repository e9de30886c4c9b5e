//! Values of the kept blocks of a dense matrix. A thread copies four vectors (or elements) through registers; all four
//! loads start before the first store. The output is written backwards from the last slot: the data that `score` read
//! last is still in L2.

use crate::device::prelude::*;
use crate::families::convert::abi::*;

impl<W: WalkInfo, E: Elem, const ALIGNED: bool> Kernel<W, E, ConvertParams> for FillDense<ALIGNED> {
    #[inline(always)]
    unsafe fn run(p: &ConvertParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let wide = if ALIGNED { 16 / E::BYTES } else { 1 };
        let groups = p.starts().at(p.block_rows).ld();
        let slots = (groups as u64 * p.group.value as u64).min(p.capacity as u64) as u32;
        let first = gpu::block_x() * SCAN_THREADS * COPIES + gpu::thread();
        let mut to = [None; COPIES as usize];
        let mut raw = [[0u32; 4]; COPIES as usize];
        unroll!(u < 4, {
            let (back, inside) = p.block_copies.of(first + u as u32 * SCAN_THREADS);
            let slot = slots.wrapping_sub(1).wrapping_sub(back);
            let valid = back < slots;
            let block_column = p.slot_columns().at(slot).ld_if(valid);
            let block_row = p.group_rows().at(p.group.of(slot).0).ld_if(valid);
            let (below, beside) = p.row_copies.of(inside);
            let row = block_row * p.block_m.value + below;
            let column = block_column.wrapping_mul(p.block_k.value).wrapping_add(beside * wide);
            let filled = valid && block_column != NO_BLOCK && row < p.m && column < p.k;
            let from = p.source::<E>().row(row, p.row_bytes).at(column);
            raw[u] = if ALIGNED {
                from.cast::<[u32; 4]>().ld_once_if(filled)
            } else {
                from.ld_raw::<1>(filled)
            };
            let copy = slot as u64 * p.block_copies.value as u64 + inside as u64;
            to[u] = valid.then(|| p.values().bytes(copy * (wide * E::BYTES) as u64));
        });
        unroll!(u < 4, {
            if let Some(to) = to[u] {
                if ALIGNED {
                    to.cast::<[u32; 4]>().st(raw[u]);
                } else {
                    to.cast::<E>().st_raw(raw[u]);
                }
            }
        });
    }
}
