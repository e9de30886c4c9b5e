//! Level 6: persistent thread blocks. A thread block computes one tile after another, so that copies for the next tile
//! run while C is stored. C is stored in whole lines through shared memory. The order of tiles is such that tiles that
//! share rows and columns run at about the same time.

use super::level_4_ring::Ring;
use super::{Half, index};
use crate::abi::*;
use crate::device::gpu;
use crate::device::kernel::Kernel;
use crate::device::maps::Maps;
use crate::device::ptx::wgmma::Acc;
use crate::device::ptx::{barrier, warp};
use crate::device::shared::Shared;
use crate::device::warpgroup::{CONSUMER_WARPS, REGISTERS};
use crate::families::tutorial::abi::*;
use crate::frag;

/// Tiles of a column of tiles before the next column begins. The tiles that run at the same time, one per
/// multiprocessor, then form a block of C that is closer to a square than to a line. They read fewer distinct rows of A
/// and columns of B.
const GROUP: u32 = 16;

type This = Level<6>;

impl<W: WalkInfo, E: Half> Kernel<W, E, LevelsParams> for Level<6> {
    #[inline(always)]
    unsafe fn run(p: &LevelsParams, at: Maps) {
        Self::make_barriers();
        let tiles = p.m / Self::ROWS * (p.n / Self::COLUMNS);
        let mut tile = gpu::block_x();
        let mut ring = Ring::START;
        if gpu::thread() >= CONSUMER_WARPS * 32 {
            barrier::setmaxnreg_dec::<{ REGISTERS[0] }>();
            if gpu::thread() == CONSUMER_WARPS * 32 {
                while tile < tiles {
                    ring = Self::copies(p, at, raster(p, tile), ring);
                    tile += gpu::grid_x();
                }
            }
        } else {
            barrier::setmaxnreg_inc::<{ REGISTERS[1] }>();
            let half = gpu::thread() / 128;
            while tile < tiles {
                let mut acc = Acc::<4>::zero();
                ring = Self::products::<E>(p, half, ring, &mut acc);
                store::<E>(p, raster(p, tile), &acc);
                tile += gpu::grid_x();
            }
        }
    }
}

/// First row and column of a tile. Order: down the rows of a group of [`GROUP`], then the next column, then the next
/// group.
#[inline(always)]
fn raster(p: &LevelsParams, tile: u32) -> (u32, u32) {
    let (down, across) = (p.m / This::ROWS, p.n / This::COLUMNS);
    // Never 0. Without `max`, the compiler would add a panic for division by zero to the kernel.
    let in_group = (GROUP * across).max(1);
    let first = tile / in_group * GROUP;
    let height = GROUP.min(down - first).max(1);
    let within = tile % in_group;
    let (row, column) = (first + within % height, within / height);
    (row * This::ROWS, column * This::COLUMNS)
}

/// Stores the 16 rows of a warp, 64 columns at a time. `stmatrix` writes accumulators as rows to shared memory. Eight
/// lanes then store a line of 128 bytes.
#[inline(always)]
fn store<E: Half>(p: &LevelsParams, (row, column): (u32, u32), acc: &Acc<4>) {
    let (lane, warp) = (gpu::opaque_thread() % 32, gpu::opaque_thread() / 32);
    // SAFETY: the host launches with the shared memory of the tile, which includes the buffer.
    let buffer = unsafe { Shared::<u8>::dynamic(This::OUT as u32) };
    let buffer = buffer.bytes(warp * 16 * PANEL_BYTES as u32);
    let (r, chunk) = frag::ldmatrix_x4(lane);
    let to = p.c::<E>().at(index(row + warp * 16 + lane / 8, column + lane % 8 * 8, p.n));
    let four_rows = index(4, 0, p.n) * E::BYTES as u64;
    unroll!(c < 4, {
        // All lanes have read the previous 64 columns.
        warp::sync(u32::MAX);
        unroll!(j < 4, {
            let x = &acc.0[c];
            let pair = |i: usize| E::put(&[x[i], x[i + 1], 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])[0];
            let (i, at) = (8 * j, frag::swizzle(r, 2 * j as u32 + chunk, PANEL_BYTES as u32));
            let words = [pair(i), pair(i + 2), pair(i + 4), pair(i + 6)];
            buffer.bytes(at).stmatrix(words);
        });
        warp::sync(u32::MAX);
        unroll!(j < 4, {
            let from = frag::swizzle(4 * j as u32 + lane / 8, lane % 8, PANEL_BYTES as u32);
            let eight = buffer.bytes(from).cast::<[u32; 4]>().ld();
            let line = to.bytes(j as u64 * four_rows).at((64 * c) as u64);
            line.cast::<[u32; 4]>().st(eight);
        });
    });
}
