//! Epilogue: activation, the weight of each row, and stores through shared memory as whole lines of C, at the rows of
//! the slots or of their choices.

use super::work::Work;
use crate::device::prelude::*;
use crate::device::quantize::quantize;
use crate::device::store::chunk::{stage_rows, staged, where_positive};
use crate::families::gather_gemm::abi::*;

/// Row of C, or index of scales, of a row that does not exist.
pub(super) const NOWHERE: u32 = u32::MAX;

impl<const CHUNKS: usize, F: GroupedForm<A: Multiply, L: Loader>> GroupedTile<CHUNKS, F> {
    /// Returns the row of the row block for which lanes 0 to 15 of this warp hold data; lanes 16 to 31 hold the same
    /// rows.
    #[inline(always)]
    pub(super) fn own_row(group: u32) -> u32 {
        let thread = gpu::opaque_thread();
        group * 64 + thread / 32 % 4 * 16 + thread % 16
    }

    /// Loads the choice of this lane's row, if it is used.
    #[inline(always)]
    pub(super) fn consumer_choice(p: &GroupedParams, work: Work, group: u32) -> u32 {
        let row = Self::own_row(group);
        let of_a = F::ORDER == QUANTIZED_COLUMNS && p.flags & GROUPED_GATHER != 0;
        let asked = of_a || p.flags & GROUPED_SCATTER != 0 || p.weights != 0;
        p.order().at(work.first + row).ld_if(asked && row < work.rows)
    }

    /// Loads the weight of this lane's row, if rows are weighted.
    #[inline(always)]
    pub(super) fn weight(p: &GroupedParams, work: Work, group: u32, choice: u32) -> u32 {
        let valid = p.weights != 0 && Self::own_row(group) < work.rows;
        p.weights().at(choice).ld_if(valid)
    }

    /// Stores a warpgroup's rows of a tile.
    #[inline(always)]
    pub(super) fn epilogue<E: WgmmaElem>(
        p: &GroupedParams,
        work: Work,
        (group, held): (u32, u32),
        (choice, weight): (u32, u32),
        acc: &mut Acc<CHUNKS>,
    ) {
        let smem = Self::out_buffer(group, held);
        F::A::exchange_quarters(acc, smem, 1 + group);
        let lane = gpu::opaque_thread() % 32;
        // Hidden from the optimizer: predicates kept through the loop over tiles cost registers.
        let flags = warp::opaque(p.flags);
        let row = Self::own_row(group);
        let inside = row < work.rows;
        let slot = work.first + row;
        let weight = [0, 8].map(|r| {
            let own = warp::shfl(weight, lane / 4 + r);
            if p.weights != 0 { f32::from_bits(own) } else { 1.0 }
        });
        let floor = if flags & FLAG_RELU != 0 { 0.0 } else { f32::NEG_INFINITY };
        let place = match (inside, flags & GROUPED_SCATTER != 0) {
            (false, _) => NOWHERE,
            (true, true) => choice,
            (true, false) => slot,
        };
        let top = gpu::opaque_thread() / 32 % 4 * 16;
        let corner = (smem.bytes(top * PANEL_BYTES as u32), work.column);
        Self::store::<E>(p, corner, place, (floor, weight), acc);
        // Without a stage (k = 0) none was kept.
        if !F::A::ASYNCHRONOUS && p.k > 0 {
            Self::release(held);
        }
    }

    /// Returns the buffer of a warpgroup's epilogue: its own, or its rows of A in the stage that it still holds.
    #[inline(always)]
    fn out_buffer(group: u32, held: u32) -> Shared<u8> {
        let first = if F::A::ASYNCHRONOUS {
            // SAFETY: `SHARED_BYTES` of the tile includes the output buffers.
            unsafe { Shared::dynamic(Self::OUT as u32) }
        } else {
            Self::stage(held)
        };
        first.bytes(group * SMEM_TILE as u32)
    }

    /// Stores chunks of 64 columns through shared memory as whole lines of 128 bytes, each warp its own 16 rows.
    /// `place`: row of C of row `lane % 16` of the warp. Sums are multiplied by their gates, or those below `floor`
    /// become zero (ReLU, or no change). Then each row is weighted.
    #[inline(always)]
    fn store<E: WgmmaElem>(
        p: &GroupedParams,
        (smem, left): (Shared<u8>, u32),
        place: u32,
        (floor, weight): (f32, [f32; 2]),
        acc: &Acc<CHUNKS>,
    ) {
        let lane = gpu::opaque_thread() % 32;
        let own = frag::ldmatrix_x4(lane);
        let column = left + lane % 8 * 8;
        let mut lines = [0u32; 4];
        unroll!(j < 4, {
            lines[j] = warp::shfl(place, 4 * j as u32 + lane / 8);
        });
        let corner = p.c().cast::<u16>().at(column);
        unroll!(c < Self::OUT_CHUNKS, most 4, {
            // The lanes have read the previous 64 columns.
            warp::sync(u32::MAX);
            let mut finished = acc.0[c];
            unroll!(j < 8, {
                if F::GATED {
                    let own = [0, 1, 2, 3].map(|i| finished[4 * j + i]);
                    let gates = glu::gate::<E>(warp::opaque(p.flags), own);
                    unroll!(i < 4, {
                        let other = acc.0[c + CHUNKS - Self::OUT_CHUNKS][4 * j + i];
                        finished[4 * j + i] = E::mul(weight[i / 2], E::mul(gates[i], other));
                    });
                } else {
                    unroll!(i < 4, {
                        let x = &mut finished[4 * j + i];
                        *x = E::mul(weight[i / 2], if *x < floor { 0.0 } else { *x });
                    });
                }
            });
            stage_rows::<E>(&finished, smem, own);
            warp::sync(u32::MAX);
            unroll!(j < 4, {
                let eight = staged(smem, 4 * j as u32 + lane / 8, lane);
                let quantizes = warp::opaque(p.flags) & GROUPED_QUANTIZE != 0;
                if F::ORDER == QUANTIZED_COLUMNS && quantizes {
                    Self::store_quantized::<E>(p, lines[j], left + 64 * c as u32, eight);
                } else if lines[j] != NOWHERE && column + 64 * (c as u32) < p.n {
                    let line = corner.row(lines[j], p.ldc_bytes);
                    let eight = Self::gated::<E>(p, (lines[j], column + 64 * c as u32), eight);
                    line.at(c as u64 * 64).cast::<[u32; 4]>().st(eight);
                }
            });
        });
    }

    /// Stores eight neighbours of a row as e4m3, of the 64 from `column` on, and the scale of these 64.
    #[inline(always)]
    fn store_quantized<E: WgmmaElem>(p: &GroupedParams, row: u32, column: u32, eight: [u32; 4]) {
        let lane = gpu::opaque_thread() % 8;
        let (codes, scale) = quantize::<E>(&eight);
        if row == NOWHERE {
            return;
        }
        let own = column + lane * 8;
        if own < p.n {
            let line = p.c().row(row, p.ldc_bytes);
            line.at(own).cast::<[u32; 2]>().st(codes);
        }
        let block = column / QUANTIZED_BLOCK as u32;
        // All scales of the last stage are read, even past the columns of C.
        let blocks = Self::scales_of(p.n.div_ceil(2));
        if lane == 0 && block < blocks {
            let line = row as u64 * blocks as u64;
            p.c_scales().at(line + block as u64).st(scale);
        }
    }

    /// Returns eight neighbours of a row, with zeros where the gate is not positive.
    #[inline(always)]
    fn gated<E: WgmmaElem>(
        p: &GroupedParams,
        (row, column): (u32, u32),
        eight: [u32; 4],
    ) -> [u32; 4] {
        if warp::opaque(p.flags) & GROUPED_GATE == 0 {
            return eight;
        }
        let at = p.gate().row(row, p.gate_bytes).at(column);
        where_positive::<E>(at.cast::<[u32; 4]>().ld_once_if(true), eight)
    }

    /// Zeros the rows of C of choices without an expert, a warp for each row.
    #[inline(always)]
    pub(super) fn clear_dropped(p: &GroupedParams) {
        if p.flags & GROUPED_SCATTER == 0 {
            return;
        }
        let thread = gpu::opaque_thread();
        let (lane, warp) = (thread % 32, thread / 32);
        let first = p.offsets().at(p.experts).ld();
        let mut slot = first + gpu::block_x() * Self::CONSUMER_WARPS + warp;
        while slot < p.slots {
            let choice = p.order().at(slot).ld();
            let line = p.c().row(choice, p.ldc_bytes).cast::<u16>();
            let mut column = lane * 8;
            while column < p.n {
                line.at(column).cast::<[u32; 4]>().st([0; 4]);
                column += 256;
            }
            slot += gpu::grid_x() * Self::CONSUMER_WARPS;
        }
    }
}
