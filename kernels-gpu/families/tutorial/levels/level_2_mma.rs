//! Level 2: Tensor Cores. A warp multiplies 16 x 16 by 16 x 8 elements in one instruction (`mma.sync`). Copies of the
//! next tiles (`cp.async`) run meanwhile, without registers.

use super::{Half, index, lane_place, store_atom};
use crate::abi::*;
use crate::device::gpu;
use crate::device::kernel::Kernel;
use crate::device::maps::Maps;
use crate::device::mma::MmaElem;
use crate::device::ptx::copy;
use crate::device::shared::Shared;
use crate::device::stages::Stages;
use crate::device::tile::{ATile, BTile};
use crate::families::tutorial::abi::*;

/// Bytes of a row of B's tile: 128 columns.
const B_ROW: usize = 256;

/// Accumulators of a warp, 64 x 64 elements of C: atoms of 16 x 8, of which a lane holds four elements.
type Acc = [[[f32; 4]; 8]; 4];

impl<W: WalkInfo, E: Half> Kernel<W, E, LevelsParams> for Level<2> {
    #[inline(always)]
    unsafe fn run(p: &LevelsParams, _at: Maps) {
        let (row, column) = Self::place();
        let stages = p.k / Self::DEPTH;
        let mut acc: Acc = [[[0.0; 4]; 8]; 4];
        start::<E>(p, row, column, 0);
        start::<E>(p, row, column, 1);
        let mut s = 0;
        while s < stages {
            // At most the copies of stage s + 1 are pending: for this thread, and after the barrier for all threads.
            copy::cp_async_wait::<1>();
            gpu::sync_threads();
            // Stage s + 2 overwrites stage s - 1, which all warps have read.
            start::<E>(p, row, column, s + 2);
            multiply::<E>(Self::stage(s % 3), &mut acc);
            s += 1;
        }
        let (down, across) = warp_place();
        unroll!(i < 4, {
            let to = lane_place::<E>(p, row + down + 16 * i as u32, column + across);
            unroll!(j < 8, {
                store_atom::<E>(p, to.at(8 * j as u64), acc[i][j]);
            });
        });
    }
}

/// First row and column of this warp in the tile.
#[inline(always)]
fn warp_place() -> (u32, u32) {
    let warp = gpu::thread() / 32;
    (warp / 2 * 64, warp % 2 * 64)
}

/// Starts the copies of a stage, 16 bytes per thread and step, and commits them as a group. Past the last stage the
/// group is empty, so that the number of groups remains that of stages.
#[inline(always)]
fn start<E: Half>(p: &LevelsParams, row: u32, column: u32, s: u32) {
    let (stage, k) = (Level::<2>::stage(s % 3), s * Level::<2>::DEPTH);
    let a = ATile(stage);
    let b = BTile::<B_ROW>(stage.bytes(Level::<2>::A_BYTES as u32));
    if k < p.k {
        unroll!(i < 8, {
            let piece = gpu::thread() + 128 * i as u32;
            let (r, chunk) = (piece / 8, piece % 8);
            let from = p.a::<E>().at(index(row + r, k + 8 * chunk, p.k));
            from.cp_async_16(a.chunk(r, chunk), 16);
            let (r, chunk) = (piece / 16, piece % 16);
            let from = p.b::<E>().at(index(k + r, column + 8 * chunk, p.n));
            from.cp_async_16(b.chunk(r, chunk), 16);
        });
    }
    copy::cp_async_commit();
}

/// Multiplies a stage in four k-steps of 16. Each loads fragments into registers (`ldmatrix`) and issues 32 `mma.sync`.
#[inline(always)]
fn multiply<E: Half>(stage: Shared<u8>, acc: &mut Acc) {
    let lane = gpu::thread() % 32;
    let (down, across) = warp_place();
    let a_tile = ATile(stage);
    let b_tile = BTile::<B_ROW>(stage.bytes(Level::<2>::A_BYTES as u32));
    let mut step = 0;
    while step < 4 {
        let mut a = [[0u32; 4]; 4];
        unroll!(i < 4, {
            a[i] = E::a(a_tile, down + 16 * i as u32, step, lane);
        });
        unroll!(j < 4, {
            let b = E::b(b_tile, step, across + 16 * j as u32, lane);
            unroll!(i < 4, {
                <E as MmaElem>::mma(&mut acc[i][2 * j], a[i], b[0]);
                <E as MmaElem>::mma(&mut acc[i][2 * j + 1], a[i], b[1]);
            });
        });
        step += 1;
    }
}
