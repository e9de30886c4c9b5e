//! Level 1: every element that is loaded from global memory is used many times. A tile of A and a tile of B are stored
//! in shared memory, where the whole thread block reads them. A thread accumulates 8 x 8 elements of C in registers.

use super::{Half, index};
use crate::abi::*;
use crate::device::gpu;
use crate::device::kernel::Kernel;
use crate::device::maps::Maps;
use crate::device::shared::Shared;
use crate::device::stages::Stages;
use crate::families::tutorial::abi::*;

/// Elements of a line of either tile, all of one k. They are f32. A is transposed when it is stored, so that a thread's elements are
/// contiguous in both tiles.
const LINE: u32 = 128;

impl<W: WalkInfo, E: Half> Kernel<W, E, LevelsParams> for Level<1> {
    #[inline(always)]
    unsafe fn run(p: &LevelsParams, _at: Maps) {
        let (row, column) = Self::place();
        let a_tile = Self::stage(0).cast::<f32>();
        let b_tile = a_tile.bytes(Self::A_BYTES as u32);
        let (down, across) = (gpu::thread() / 16 * 4, gpu::thread() % 16 * 4);
        let mut acc = [[0f32; 8]; 8];
        let mut k = 0;
        while k < p.k {
            fill::<E>(p, (row, k, column), [a_tile, b_tile]);
            let mut i = 0;
            while i < Self::DEPTH {
                let a = eight(a_tile.at(i * LINE + down));
                let b = eight(b_tile.at(i * LINE + across));
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
fn fill<E: Half>(
    p: &LevelsParams,
    (row, k, column): (u32, u32, u32),
    [a_tile, b_tile]: [Shared<f32>; 2],
) {
    let thread = gpu::thread();
    let (a_row, a_k) = (thread % 128, thread / 128 * 8);
    let (b_k, b_column) = (thread / 16, thread % 16 * 8);
    // Both loads are issued before the barrier.
    let a = p.a::<E>().at(index(row + a_row, k + a_k, p.k)).ld_raw::<8>(true);
    let b = p.b::<E>().at(index(k + b_k, column + b_column, p.n)).ld_raw::<8>(true);
    // After this barrier, all threads have read the previous tiles.
    gpu::sync_threads();
    unroll!(i < 8, {
        a_tile.at((a_k + i as u32) * LINE + a_row).st(E::get(&a, i));
    });
    unroll!(h < 2, {
        let four = [0, 1, 2, 3].map(|i| E::get(&b, 4 * h + i).to_bits());
        let to = b_tile.at(b_k * LINE + b_column + 4 * h as u32);
        to.cast::<[u32; 4]>().st(four);
    });
    gpu::sync_threads();
}

/// Loads four adjacent elements, and four more at a distance of 64. With eight adjacent elements, two of eight lanes
/// would access the same banks.
#[inline(always)]
fn eight(from: Shared<f32>) -> [f32; 8] {
    let four = |from: Shared<f32>| from.cast::<[u32; 4]>().ld().map(f32::from_bits);
    let ([a, b, c, d], [e, f, g, h]) = (four(from), four(from.at(64)));
    [a, b, c, d, e, f, g, h]
}
