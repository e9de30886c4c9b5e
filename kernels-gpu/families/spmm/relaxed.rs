//! SpMM as in `spmm`, `C += alpha * A * B` in f32, except for split rows: their pieces are added to C by atomics, in
//! any order. This is the baseline that measures the cost of the split-K fix-up (`Determinism::Relaxed`).

use crate::device::epilogue::scale;
use crate::device::prelude::*;
use crate::device::walk::Walk;
use crate::families::spmm::abi::*;

impl<W: Walk, E: Elem, const LANES: u32, const VEC: usize, const REP: usize, const UNROLL: usize>
    Kernel<W, E, SpmmParams> for Relaxed<LANES, VEC, REP, UNROLL>
{
    #[inline(always)]
    unsafe fn run(p: &SpmmParams, _at: u64) {
        grid::launch_dependents();
        let lane = gpu::thread() % LANES;
        let index = gpu::block_x() * Self::ITEMS + gpu::thread() / LANES;
        if index >= p.item_count {
            return;
        }
        let [row, start, len, slot] =
            global::ld_nc_no_allocate_v4(p.items + index as u64 * 16, true);
        let column = gpu::block_y() * Self::COLUMNS + lane * VEC as u32;
        if slot == BUNDLE {
            return SubWarp::<LANES, VEC, REP, UNROLL, 1>::bundle::<W, E>(p, row, len, column);
        }
        grid::wait_dependency();
        let acc = SubWarp::<LANES, VEC, REP, UNROLL, 1>::gather::<W, E>(p, start, len, 0, column);
        if slot == WHOLE_ROW {
            return SubWarp::<LANES, VEC, REP, UNROLL, 1>::store::<E>(p, row, len, column, &acc);
        }
        let alpha = scale::<E>(p.output(), len);
        let c = p.c + row as u64 * p.ldc_bytes as u64;
        unroll!(r < REP, {
            let column = column + r as u32 * LANES * VEC as u32;
            if column < p.n {
                unroll!(i < VEC, {
                    let at = c + (column as u64 + i as u64) * E::BYTES as u64;
                    let [word, _] = E::words(E::fma(alpha, acc[r][i], E::ZERO));
                    global::red_add_f32(at, f32::from_bits(word));
                });
            }
        });
    }
}
