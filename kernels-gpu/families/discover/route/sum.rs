//! Output row of a token: the sum of its experts' results, in the order of its choices. If choices are given, dropped
//! choices are without a row.

use crate::device::prelude::*;
use crate::families::discover::abi::*;

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, RouteParams> for RouteSum {
    #[inline(always)]
    unsafe fn run(p: &RouteParams, _: Maps) {
        grid::wait_dependency();
        grid::launch_dependents();
        let (token, vector) = p.vectors.of(gpu::block_x() * ROUTE_THREADS + gpu::thread());
        if token >= p.tokens {
            return;
        }
        let row = p.rows().row(token * p.top, p.row_bytes).at(vector);
        let mut sums = [0f32; 8];
        let mut from = 0;
        while from < p.top {
            let mut raw = [[0u32; 4]; 4];
            let mut own = [false; 4];
            unroll!(i < 4, {
                let choice = from + i as u32;
                let asked = choice < p.top && p.choices != 0;
                let chosen = super::expert(p, token * p.top + choice, asked);
                own[i] = choice < p.top && (p.choices == 0 || chosen + 1 < p.bins.value);
            });
            unroll!(i < 4, {
                raw[i] = row.row(from + i as u32, p.row_bytes).ld_once_if(own[i]);
            });
            unroll!(i < 4, {
                unroll!(j < 8, {
                    sums[j] += E::get(&raw[i], j);
                });
            });
            from += 4;
        }
        p.sums().row(token, p.sum_bytes).at(vector).st(E::put(&sums));
    }
}
