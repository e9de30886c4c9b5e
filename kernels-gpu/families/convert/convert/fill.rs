//! Values of the kept blocks of a dense matrix. A thread copies four vectors (or elements) through registers; all four
//! loads start before the first store. The output is written backwards from the last slot: the data that `score` read
//! last is still in L2.

use super::word;
use crate::device::prelude::*;
use crate::families::convert::abi::*;

impl<W: WalkInfo, E: Elem, const ALIGNED: bool> Kernel<W, E, ConvertParams> for FillDense<ALIGNED> {
    #[inline(always)]
    unsafe fn run(p: &ConvertParams, _at: u64) {
        grid::launch_dependents();
        grid::wait_dependency();
        let wide = if ALIGNED { 16 / E::BYTES } else { 1 };
        let groups = global::ld_cg_b32(word(p.starts, p.block_rows as u64), true);
        let slots = (groups as u64 * p.group.value as u64).min(p.capacity as u64) as u32;
        let first = gpu::block_x() * SCAN_THREADS * COPIES + gpu::thread();
        let mut to = [0u64; COPIES as usize];
        let mut raw = [[0u32; 4]; COPIES as usize];
        unroll!(u < 4, {
            let (back, inside) = p.block_copies.of(first + u as u32 * SCAN_THREADS);
            let slot = slots.wrapping_sub(1).wrapping_sub(back);
            let valid = back < slots;
            let block_column = global::ld_cg_b32(word(p.slot_columns, slot as u64), valid);
            let block_row = global::ld_cg_b32(word(p.group_rows, p.group.of(slot).0 as u64), valid);
            let (below, beside) = p.row_copies.of(inside);
            let row = block_row * p.block_m.value + below;
            let column = block_column.wrapping_mul(p.block_k.value).wrapping_add(beside * wide);
            let filled = valid && block_column != NO_BLOCK && row < p.m && column < p.k;
            let from = p.source + row as u64 * p.row_bytes + column as u64 * E::BYTES as u64;
            raw[u] = if ALIGNED {
                global::ld_nc_no_allocate_v4(from, filled)
            } else {
                E::ld_nc::<1>(from, filled)
            };
            let copy = slot as u64 * p.block_copies.value as u64 + inside as u64;
            to[u] = if valid { p.values + copy * (wide * E::BYTES) as u64 } else { 0 };
        });
        unroll!(u < 4, {
            if to[u] != 0 {
                if ALIGNED {
                    global::st_v4(to[u], raw[u]);
                } else {
                    E::store_raw(to[u], raw[u]);
                }
            }
        });
    }
}
