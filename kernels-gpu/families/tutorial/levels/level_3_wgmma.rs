//! Level 3: the two asynchronous units of Hopper. One thread starts copies of whole tiles (`cp.async.bulk.tensor`); an
//! mbarrier in shared memory counts their bytes. Four warps together multiply 64 x 128 (`wgmma`) with operands in
//! shared memory. Copies and products do not overlap yet.

use super::{Half, lane_place, store_atom};
use crate::abi::*;
use crate::device::gpu;
use crate::device::kernel::Kernel;
use crate::device::maps::Maps;
use crate::device::ptx::barrier;
use crate::device::ptx::wgmma::{self, Acc};
use crate::device::shared::Shared;
use crate::device::stages::Stages;
use crate::device::warpgroup::WgmmaElem;
use crate::families::tutorial::abi::*;

impl<W: WalkInfo, E: Half> Kernel<W, E, LevelsParams> for Level<3> {
    #[inline(always)]
    unsafe fn run(p: &LevelsParams, at: Maps) {
        let place = Self::place();
        if gpu::thread() == 0 {
            Self::full(0).init(1);
            barrier::init_fence();
        }
        gpu::sync_threads();
        let mut acc = [Acc::<2>::zero(); 2];
        let (mut k, mut parity) = (0, 0);
        while k < p.k {
            if gpu::thread() == 0 {
                Self::start(at, place, k, 0);
            }
            Self::full(0).wait(parity);
            multiply::<E>(&mut acc, Self::stage(0));
            acc[0].wait::<0>();
            acc[1].wait::<0>();
            // Every warp has read the tiles: the next copies may overwrite them.
            gpu::sync_threads();
            (k, parity) = (k + Self::DEPTH, parity ^ 1);
        }
        epilogue::<E, 2>(p, place, &acc[0]);
        epilogue::<E, 2>(p, (place.0 + HALF as u32, place.1), &acc[1]);
    }
}

impl<const NUMBER: usize> Level<NUMBER> {
    /// Starts the copies of a stage; one thread calls it. Tiles have rows of 128 bytes with the swizzle of `wgmma`: A
    /// is one copy, B one copy for each 64 columns.
    #[inline(always)]
    pub(super) fn start(at: Maps, (row, column): (u32, u32), k: u32, slot: u32) {
        let (stage, full) = (Self::stage(slot), Self::full(slot));
        full.arrive_expect_tx(Self::STAGE as u32);
        at.map(0).load_2d(stage, [k, row], full);
        unroll!(c < Self::COLUMNS as usize / 64, {
            let to = stage.bytes((Self::A_BYTES + c * SMEM_TILE) as u32);
            at.map(1).load_2d(to, [column + 64 * c as u32, k], full);
        });
    }
}

/// Descriptor of 64 rows of A from `smem` on, for a k-step of 16: rows of 128 bytes along k.
#[inline(always)]
pub(super) fn a(smem: Shared<u8>, step: usize) -> u64 {
    smem.bytes(32 * step as u32).descriptor(PANEL_BYTES as u32, 16)
}

/// Descriptor of columns of B from `b_tile` on, for a k-step of 16: rows of 128 bytes along n. The next 64 columns are
/// in the next shared-memory tile.
#[inline(always)]
pub(super) fn b(b_tile: Shared<u8>, step: usize) -> u64 {
    let row = PANEL_BYTES as u32;
    b_tile.bytes(16 * step as u32 * row).descriptor(row, SMEM_TILE as u32)
}

/// Issues the products of a stage, 128 x 128 and 64 deep, for two halves of 64 rows.
#[inline(always)]
pub(super) fn multiply<E: Half>(acc: &mut [Acc<2>; 2], stage: Shared<u8>) {
    let b_tile = stage.bytes(2 * SMEM_TILE as u32);
    acc[0].fence();
    acc[1].fence();
    unroll!(step < STEPS, {
        unroll!(half < 2, {
            let smem = stage.bytes((half * SMEM_TILE) as u32);
            <E as WgmmaElem>::mma::<2, 0, 1>(&mut acc[half], a(smem, step), b(b_tile, step));
        });
    });
    wgmma::commit();
}

/// Stores the 64 rows of a warpgroup, 16 per warp.
#[inline(always)]
pub(super) fn epilogue<E: Half, const C: usize>(
    p: &LevelsParams,
    (row, column): (u32, u32),
    acc: &Acc<C>,
) {
    let to = lane_place::<E>(p, row + gpu::thread() / 32 % 4 * 16, column);
    unroll!(c < C, {
        unroll!(j < 8, {
            let x = &acc.0[c];
            let sums = [x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]];
            store_atom::<E>(p, to.at((64 * c + 8 * j) as u64), sums);
        });
    });
}
