//! Epilogue of attention. If the tiles of the queries were split, a split-K fix-up adds the parts. Sums are divided by
//! the sum of exponentials, and stored through shared memory as whole rows.

use super::softmax::{Rows, rescale};
use crate::device::epilogue::Output;
use crate::device::prelude::*;
use crate::device::split_k;
use crate::device::store::StoreTile;
use crate::families::attention::abi::*;
use crate::families::attention::lanes::{quad_sum, rescaling};

const LN_2: f32 = core::f32::consts::LN_2;

impl<const CHUNKS: usize, A: AtomInfo, L> Attention<CHUNKS, A, L> {
    /// Applies the epilogue to the sums of a part.
    #[inline(always)]
    pub(super) fn epilogue<E: WgmmaElem>(
        p: &AttentionParams,
        now: Queries,
        group: u32,
        out: &mut Acc<CHUNKS>,
        mut rows: Rows,
    ) {
        rows.sum = rows.sum.map(quad_sum);
        if now.count() > 1 && !Self::split_k_fix_up(p, now, group, out, &mut rows) {
            return;
        }
        Self::finish::<E>(p, now, group, out, rows);
    }

    /// Split-K fix-up: stores the sums of this part. Returns true for the warpgroup that arrives last, which then has
    /// those of all parts, added in order.
    #[inline(always)]
    fn split_k_fix_up(
        p: &AttentionParams,
        now: Queries,
        group: u32,
        out: &mut Acc<CHUNKS>,
        rows: &mut Rows,
    ) -> bool {
        let lane = gpu::opaque_thread() % 128;
        let place = |part: u32| {
            let index = (now.first + part) as u64 * 2 + group as u64;
            p.partial().bytes(index * attention_partial(CHUNKS) as u64).at(lane)
        };
        let row_place = |part: u32| place(part).at((CHUNKS * 8 * 128) as u64);
        split_k::put(place(now.part()), out);
        let own = [rows.base[0], rows.base[1], rows.sum[0], rows.sum[1]];
        row_place(now.part()).st(own.map(f32::to_bits));
        let counter = p.counters().at(now.counter * 2 + group);
        let told = Self::scratch().at(group);
        if !split_k::warpgroup_arrives_last(counter, now.count(), told, group) {
            return false;
        }
        *out = Acc::zero();
        *rows = Rows::NONE;
        let mut part = 0;
        while part < now.count() {
            Self::add_part(place(part), row_place(part), p.scale, out, rows);
            part += 1;
        }
        true
    }

    /// Adds the sums of a part, stored at `place`. The bases and sums of its rows are stored at `row_place`.
    #[inline(always)]
    fn add_part(
        place: Global<[u32; 4], Fresh>,
        row_place: Global<[u32; 4], Fresh>,
        scale: f32,
        out: &mut Acc<CHUNKS>,
        rows: &mut Rows,
    ) {
        let own = row_place.ld().map(f32::from_bits);
        let (old, more) = merge(rows, own, scale);
        rescale(out, old);
        unroll!(c < CHUNKS, most 4, {
            unroll!(j < 8, {
                let four = place.at(((c * 8 + j) * 128) as u64).ld();
                unroll!(i < 4, {
                    let sum = &mut out.0[c][4 * j + i];
                    *sum = matrix::fma_f32(f32::from_bits(four[i]), more[i / 2], *sum);
                });
            });
        });
    }

    /// Divides the accumulators by the sums of exponentials. Stores the logarithms of the sums, if requested, and O.
    #[inline(always)]
    fn finish<E: WgmmaElem>(
        p: &AttentionParams,
        now: Queries,
        group: u32,
        out: &mut Acc<CHUNKS>,
        rows: Rows,
    ) {
        let inverse = rows.sum.map(matrix::rcp_approx);
        unroll!(c < CHUNKS, most 4, {
            unroll!(atom < 8, {
                unroll!(i < 4, {
                    let x = &mut out.0[c][4 * atom + i];
                    // Without an entry the result is zero, even if other rows of the tile multiplied an infinity.
                    *x = if rows.sum[i / 2] == 0.0 {
                        0.0
                    } else {
                        *x * inverse[i / 2]
                    };
                });
            });
        });
        let top = now.row + group * HALF as u32;
        let (lane, warp) = gpu::lane_and_warp();
        let row = top + warp * 16 + frag::accumulator(lane, 0).0;
        if p.log_sum != 0 && lane % 4 == 0 {
            unroll!(r < 2, {
                let row = row + 8 * r as u32;
                let largest = if rows.sum[r] == 0.0 { 0.0 } else { rows.base[r] * p.scale };
                let log = (largest + matrix::lg2_approx(rows.sum[r])) * LN_2;
                if row < p.m {
                    let index = now.head as u64 * p.m as u64 + row as u64;
                    p.log_sum().at(index).st(log);
                }
            });
        }
        let c = p.out().row(now.head, p.out_head);
        let output = Output::plain(c, p.out_row, CHUNKS as u32 * 64, FLAG_VECTORS);
        // SAFETY: `Attention::SHARED_BYTES` includes an output buffer for each half.
        let smem = unsafe { Shared::dynamic((Self::OUT + group as usize * SMEM_TILE) as u32) };
        StoreTile::<CHUNKS, PLAIN>::write::<E>(output, p.m, [top, 0], (group, smem), 1, out);
    }
}

/// Merges the bases and sums of another part. Returns the factors for the earlier sums and for those of the part.
#[inline(always)]
fn merge(rows: &mut Rows, own: [f32; 4], scale: f32) -> ([f32; 2], [f32; 2]) {
    let (mut old, mut more) = ([0f32; 2], [0f32; 2]);
    unroll!(r < 2, {
        let largest = rows.base[r].max(own[r]);
        old[r] = rescaling(rows.base[r], largest, scale);
        more[r] = rescaling(own[r], largest, scale);
        rows.base[r] = largest;
        rows.sum[r] = matrix::fma_f32(own[2 + r], more[r], rows.sum[r] * old[r]);
    });
    (old, more)
}
