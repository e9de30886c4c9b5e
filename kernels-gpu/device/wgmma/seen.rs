//! Accumulators on their way out under somebody's eyes: each 64 columns of a warp's 16 rows are shown as they are stored.

use super::carry::{Cut, carry};
use super::out::ROWS;
use crate::abi::*;
use crate::device::elem::Elem;
use crate::device::epilogue::{Output, row_bias, scale};
use crate::device::gpu;
use crate::device::ptx::wgmma::Acc;
use crate::device::ptx::{copy, global, matrix, warp};
use crate::frag;

/// 16 bytes of four rows: of row `lane / 8 + 4 j` of a warp's 16, the columns from `lane % 8 * 8` on. Zeros outside C.
type Seen = [[u32; 4]; 4];

impl<const PM: usize, const PK: usize, const CHUNKS: usize, const ORDER: u32, const BYTES: usize>
    Panel<PM, PK, CHUNKS, ORDER, BYTES>
{
    /// As [`Self::leave`] for a C that allows accesses of 16 bytes. `show` gets the first row and column of what a warp stores.
    #[inline(always)]
    pub(in crate::device) fn leave_seen<E: Elem<Acc = f32>>(
        p: &WgmmaParams,
        strip: Strip,
        half: u32,
        show: impl Fn([u32; 2], Seen),
        acc: &mut Acc<CHUNKS>,
    ) {
        let mut stages = strip.stages;
        if strip.count() > 1 {
            if !carry(Cut::of(p, strip), half, Self::scratch(), acc) {
                return;
            }
            stages = 1;
        }
        let (o, m) = (p.output(strip.item), p.m);
        let [top, left] = [strip.row + half * HALF as u32, strip.column];
        if top >= m {
            return;
        }
        let (lane, warp) = (gpu::thread_again() % 32, gpu::thread_again() / 32 % 4);
        let row = top + warp * 16 + frag::accumulator(lane, 0).0;
        let bias = ROWS.map(|r| {
            let row = row + r as u32 * 4;
            if row < m { row_bias::<E>(o, row) } else { 0.0 }
        });
        let column = left + lane % 4 * 2;
        Self::finish::<E>(o, column, (scale::<E>(o, stages), bias), acc);
        let slab = copy::arena() + (Self::OUT + half as usize * SLAB) as u32 + warp * 2048;
        unroll!(c < CHUNKS, most 4, {
            let corner = [top + warp * 16, left + c as u32 * 64];
            show(corner, Self::send_chunk::<E>(o, m, corner, slab, acc, c));
        });
    }

    /// Stores 64 columns of a warp's 16 rows through its shared memory.
    #[inline(always)]
    fn send_chunk<E: Elem<Acc = f32>>(
        o: Output,
        m: u32,
        [top, left]: [u32; 2],
        slab: u32,
        acc: &Acc<CHUNKS>,
        c: usize,
    ) -> Seen {
        let lane = gpu::thread_again() % 32;
        let (r, chunk) = frag::ldmatrix_x4(lane);
        warp::sync_lanes(u32::MAX);
        unroll!(j < 4, {
            let mut words = [0u32; 4];
            unroll!(w < 4, {
                let k = 8 * j + 4 * (w / 2) + ROWS[w % 2];
                let (x, y) = (acc.0[c][k], acc.0[c][k + 1]);
                words[w] = E::put(&[x, y, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])[0];
            });
            let place = frag::swizzle(r, 2 * j as u32 + chunk, PANEL_BYTES as u32);
            matrix::stmatrix_x4(slab + place, words);
        });
        warp::sync_lanes(u32::MAX);
        let column = left + lane % 8 * 8;
        let mut seen = [[0; 4]; 4];
        unroll!(j < 4, {
            let own = j as u32 * 4 + lane / 8;
            let place = frag::swizzle(own, lane % 8, PANEL_BYTES as u32);
            if top + own < m && column < o.n {
                seen[j] = copy::load_shared_v4(slab + place);
                let line = o.c + (top + own) as u64 * o.ldc_bytes as u64;
                global::store_v4(line + column as u64 * 2, seen[j]);
            }
        });
        seen
    }
}
