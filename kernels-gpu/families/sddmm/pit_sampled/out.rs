//! Epilogue of the accumulators: a warpgroup transposes 64 x 64 of them in shared memory, so that a listed row is
//! stored as a line of 128 bytes.

use super::{HALF_LISTED, Work};
use crate::device::prelude::*;
use crate::device::stages::NONE;
use crate::device::store::chunk::{stage_columns, staged};
use crate::families::sddmm::abi::*;

impl<A: Multiply, L: Loader> PitSampled<A, L> {
    /// Output buffer of a warpgroup.
    #[inline(always)]
    pub(super) fn out(group: u32) -> Shared<u8> {
        // SAFETY: the host launches with `SHARED_BYTES`, which include these buffers.
        unsafe { Shared::dynamic(Self::OUT as u32) }.bytes(group * SMEM_TILE as u32)
    }

    /// Rows of S of which this lane stores 16 bytes each, or [`NONE`]. They are loaded ahead of the products.
    #[inline(always)]
    pub(super) fn lines(p: &PitSampledParams, work: Work, group: u32) -> [u32; 4] {
        let thread = gpu::opaque_thread();
        let first = group * HALF_LISTED + thread / 32 % 4 * 16 + thread % 32 / 8;
        let mut lines = [NONE; 4];
        unroll!(j < 4, {
            let place = first + 4 * j as u32;
            let valid = place < work.rows;
            let row = Self::listed(p, work, place).ld_if(valid);
            lines[j] = if valid { row } else { NONE };
        });
        lines
    }

    /// Stores a warpgroup's listed rows of a tile.
    #[inline(always)]
    pub(super) fn epilogue<E: WgmmaElem>(
        p: &PitSampledParams,
        work: Work,
        group: u32,
        lines: [u32; 4],
        acc: &Acc<1>,
    ) {
        let (lane, warp) = gpu::lane_and_warp();
        let smem = Self::out(group);
        let column = work.list * SAMPLED_WIDTH as u32 + lane % 8 * 8;
        let inside = column < p.n;
        let gate = Self::gate::<E>(p, lines, (column, inside));
        // The warpgroup has read the previous tile.
        barrier::sync_named(1 + group, 128);
        stage_columns::<E>(&acc.0[0], smem, (lane, warp));
        barrier::sync_named(1 + group, 128);
        unroll!(j < 4, {
            let line = warp * 16 + 4 * j as u32 + lane / 8;
            let eight = staged(smem, line, lane);
            if lines[j] != NONE && inside {
                let to = p.s().row(lines[j], p.lds_bytes).at(column);
                let mut out = eight;
                unroll!(w < 4, { out[w] = eight[w] & gate[j][w] });
                to.cast::<[u32; 4]>().st(out);
            }
        });
    }

    /// Masks of the elements to keep, for four lines. All loads are issued before the first is used.
    #[inline(always)]
    fn gate<E: WgmmaElem>(
        p: &PitSampledParams,
        lines: [u32; 4],
        (column, inside): (u32, bool),
    ) -> [[u32; 4]; 4] {
        let mut gate = [[u32::MAX; 4]; 4];
        if p.flags & SAMPLED_GATE == 0 {
            return gate;
        }
        unroll!(j < 4, {
            let valid = inside && lines[j] != NONE;
            let at = p.gate().row(lines[j], p.gate_bytes).at(column);
            gate[j] = at.cast::<[u32; 4]>().ld_once_if(valid);
        });
        unroll!(j < 4, {
            let eight = gate[j];
            unroll!(w < 4, {
                let half = |i: usize| {
                    let kept = E::get(&eight, 2 * w + i) > 0.0;
                    if kept { 0xffff << (16 * i) } else { 0 }
                };
                gate[j][w] = half(0) | half(1);
            });
        });
        gate
    }
}
