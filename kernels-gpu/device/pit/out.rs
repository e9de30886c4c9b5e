//! A finished tile of C leaves through the last stage that it was made of: the warpgroups write it there, the copy engine takes it
//! to C while they multiply the next tile, and only then is the stage free for rows of B.

use super::{C_MAP, CONSUMERS, NONE, Work};
use crate::abi::*;
use crate::device::gpu;
use crate::device::ptx::wgmma::Acc;
use crate::device::ptx::{barrier, bulk, copy, warp};
use crate::device::stages::Stages;
use crate::device::wgmma::WgmmaElem;
use crate::frag;

/// Named barrier of both warpgroups; those behind [`WARPGROUP`] are of one each.
const BOTH: u32 = 3;
const WARPGROUP: u32 = 1;

impl<const MT: usize, const TURNED: bool, const ORDER: u32> PitColumns<MT, TURNED, ORDER> {
    /// Finishes and stores the sums of a warpgroup. `held`: the last stage, which is free but for this. Returns it where the copy
    /// engine reads C from it still ([`Self::take_back`]).
    #[inline(always)]
    pub(super) fn leave<E: WgmmaElem, const C: usize>(
        p: &PitParams,
        at: u64,
        work: Work,
        (half, held, count): (u32, u32, u32),
        acc: &mut Acc<C>,
    ) -> u32 {
        let (item, top) = Self::place(p, work.panel);
        let corner = if MT == 128 {
            [top + half * 64, work.column]
        } else {
            [top, work.column + half * 128]
        };
        let end = p.m.min(top + MT as u32);
        let o = p.output(item);
        if ORDER != PLAIN
            || held == NONE
            || o.flags & (FLAG_VECTORS | FLAG_ACCUMULATE) != FLAG_VECTORS
        {
            Self::free(held);
            let slab = copy::arena() + Self::OUT as u32 + half * SLAB as u32;
            Panel::<64, 64, C, ORDER, 2>::write::<E>(o, end, corner, (half, slab), count, acc);
            return NONE;
        }
        Panel::<64, 64, C, PLAIN, 2>::finish_at::<E>(o, end, corner, count, acc);
        if MT == 128 {
            // Both warpgroups have read all of the stage.
            barrier::sync_named(BOTH, CONSUMERS * 32);
        } else {
            // Columns of B in it are one warpgroup's alone.
            barrier::sync_named(WARPGROUP + half, 128);
        }
        Self::send::<E, C>(p, at, (corner, end), (half, held), acc);
        held
    }

    /// Shared memory of 64 columns of a warpgroup's rows: pieces of the stage that the other warpgroup does not write, and for the last
    /// of 256 columns of 128 rows, of which there are more bytes than a stage has, the warpgroup's buffer.
    #[inline(always)]
    fn staged(half: u32, slot: u32, chunk: u32) -> u32 {
        let slab = SLAB as u32;
        if MT != 128 {
            Self::stage(slot) + Self::B_AT as u32 + (half * 2 + chunk) * slab
        } else if chunk < 3 {
            Self::stage(slot) + (half * 3 + chunk) * slab
        } else {
            copy::arena() + Self::OUT as u32 + half * slab
        }
    }

    /// Starts the stores of a warpgroup's sums, each warp its own 16 rows.
    #[inline(always)]
    fn send<E: WgmmaElem, const C: usize>(
        p: &PitParams,
        at: u64,
        ([top, left], end): ([u32; 2], u32),
        (half, slot): (u32, u32),
        acc: &Acc<C>,
    ) {
        let (lane, warp) = (gpu::thread_again() % 32, gpu::thread_again() / 32 % 4);
        let place = frag::ldmatrix_x4(lane);
        unroll!(c < C, most 4, {
            let slab = Self::staged(half, slot, c as u32) + warp * 2048;
            Panel::<64, 64, C, PLAIN, 2>::stage_chunk::<E>(slab, place, &acc.0[c]);
        });
        barrier::fence_copies();
        warp::sync_lanes(u32::MAX);
        let row = top + warp * 16;
        if lane == 0 {
            unroll!(c < C, most 4, {
                let column = left + c as u32 * 64;
                if row < end && column < p.n {
                    let slab = Self::staged(half, slot, c as u32) + warp * 2048;
                    bulk::store(at + C_MAP, column, row, slab);
                }
            });
            bulk::commit_stores();
        }
    }

    /// Waits until the copy engine has read this warp's part of a stage, and frees it.
    #[inline(always)]
    pub(super) fn take_back(slot: u32) {
        if slot == NONE {
            return;
        }
        if gpu::thread_again().is_multiple_of(32) {
            bulk::wait_stores_read();
        }
        Self::free(slot);
    }
}

const _: () = assert!(PitColumns::<128, false>::STAGE == 6 * SLAB);
