//! Level 1: every element that is loaded from global memory is used many times. A tile of A and a tile of B are stored
//! in shared memory, where the whole thread block reads them. A thread accumulates 8 x 8 elements of C in registers.

use super::{Half, index};
use crate::abi::*;
use crate::device::gpu;
use crate::device::kernel::Kernel;
use crate::device::memory::Maps;
use crate::device::ptx::copy;
use crate::device::stages::Stages;
use crate::families::tutorial::abi::*;

/// Bytes of a line of either tile: 128 f32 of one k. A is transposed when it is stored, so that a thread's elements are
/// contiguous in both tiles.
const LINE: u32 = 128 * 4;

impl<W: WalkInfo, E: Half> Kernel<W, E, LevelsParams> for Level<1> {
    #[inline(always)]
    unsafe fn run(p: &LevelsParams, _at: Maps) {
        let (row, column) = Self::place();
        let (a_tile, b_tile) = (Self::stage(0), Self::stage(0) + Self::A_BYTES as u32);
        let (down, across) = (gpu::thread() / 16 * 4, gpu::thread() % 16 * 4);
        let mut acc = [[0f32; 8]; 8];
        let mut k = 0;
        while k < p.k {
            fill::<E>(p, (row, k, column), a_tile, b_tile);
            let mut i = 0;
            while i < Self::DEPTH {
                let a = eight(a_tile + i * LINE + down * 4);
                let b = eight(b_tile + i * LINE + across * 4);
                unroll!(y < 8, {
                    unroll!(x < 8, {
                        acc[y][x] = E::fma(a[y], b[x], acc[y][x]);
                    });
                });
                i += 1;
            }
            k += Self::DEPTH;
        }
        unroll!(y < 8, {
            let row = row + down + (y / 4 * 64 + y % 4) as u32;
            let [a, b, c, d, e, f, g, h] = acc[y];
            let to = p.c::<E>().at(index(row, column + across, p.n));
            to.st_rounded(&[a, b, c, d]);
            to.at(64u32).st_rounded(&[e, f, g, h]);
        });
    }
}

/// Copies 128 x 16 elements of A and 16 x 128 elements of B to shared memory, eight of each per thread.
#[inline(always)]
fn fill<E: Half>(p: &LevelsParams, (row, k, column): (u32, u32, u32), a_tile: u32, b_tile: u32) {
    let thread = gpu::thread();
    let (a_row, a_k) = (thread % 128, thread / 128 * 8);
    let (b_k, b_column) = (thread / 16, thread % 16 * 8);
    // Both loads are issued before the barrier.
    let a = p.a::<E>().at(index(row + a_row, k + a_k, p.k)).ld_raw::<8>(true);
    let b = p.b::<E>().at(index(k + b_k, column + b_column, p.n)).ld_raw::<8>(true);
    // After this barrier, all threads have read the previous tiles.
    gpu::sync_threads();
    unroll!(i < 8, {
        let to = a_tile + (a_k + i as u32) * LINE + a_row * 4;
        copy::st_shared_b32(to, E::get(&a, i).to_bits());
    });
    unroll!(h < 2, {
        let four = [0, 1, 2, 3].map(|i| E::get(&b, 4 * h + i).to_bits());
        copy::st_shared_v4(b_tile + b_k * LINE + (b_column + 4 * h as u32) * 4, four);
    });
    gpu::sync_threads();
}

/// Loads four adjacent elements, and four more at a distance of 64. With eight adjacent elements, two of eight lanes
/// would access the same banks.
#[inline(always)]
fn eight(from: u32) -> [f32; 8] {
    let [a, b, c, d] = copy::ld_shared_v4(from).map(f32::from_bits);
    let [e, f, g, h] = copy::ld_shared_v4(from + 64 * 4).map(f32::from_bits);
    [a, b, c, d, e, f, g, h]
}
