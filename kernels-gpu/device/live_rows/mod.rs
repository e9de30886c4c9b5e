//! Rows of sequences of varying lengths: packed one behind the other, normalised, and sent back to where they came from. A warp
//! for each row; how many there are is read on the device. Packing adds up lengths itself, as `detect_lengths` does: through
//! that list it would be a kernel later, a load deeper for each row, and without the ends of the row's sequence.

use super::elem::Elem;
use super::gpu;
use super::ptx::{copy, global, grid, matrix, warp};
use crate::abi::*;

/// The body, generic over the element; the tile is the implementor.
pub trait Body: Tile {
    /// # Safety
    /// `p` describes live device memory and the launch has this tile's geometry.
    unsafe fn run<W: WalkInfo, E: Elem<Acc = f32>>(p: &LiveRowsParams, at: u64);
}

/// Warps of a thread block.
const WARPS: u32 = DETECT_THREADS / 32;

/// Sum over the thread block. Every thread must call it once.
#[inline(always)]
fn sum(value: u32) -> u32 {
    let own = warp::total(value);
    if gpu::thread().is_multiple_of(32) {
        copy::store_shared_b32(copy::arena() + gpu::thread() / 32 * 4, own);
    }
    gpu::sync_threads();
    let mut all = 0;
    unroll!(w < 8, {
        all += copy::load_shared_b32(copy::arena() + w as u32 * 4)
    });
    all
}

impl PackRows {
    /// Copies a row, or zeros; a warp. All loads are on the way before the first is waited for.
    #[inline(always)]
    fn copy_row(p: &LiveRowsParams, from: u64, to: u32, there: bool) {
        let to = p.out + to as u64 * p.out_row as u64;
        let first = gpu::thread() % 32 * 8;
        let mut words = [[0; 4]; 4];
        unroll!(v < 4, {
            let column = first + 256 * v as u32;
            let from = from + column as u64 * 2;
            words[v] = global::load_v4_fresh(from, there && column < p.columns);
        });
        unroll!(v < 4, {
            let column = first + 256 * v as u32;
            if column < p.columns {
                global::store_v4(to + column as u64 * 2, words[v]);
            }
        });
    }

    /// What is said of a packed row; one lane.
    #[inline(always)]
    fn say(p: &LiveRowsParams, row: u32, range: [u32; 2], source: u32) {
        global::store_v2(p.ranges + row as u64 * 8, range);
        global::store_b32(p.sources + row as u64 * 4, source);
    }
}

impl Body for PackRows {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: Elem<Acc = f32>>(p: &LiveRowsParams, _: u64) {
        grid::let_next_start();
        grid::wait_for_previous();
        let (item, thread) = (gpu::block_x(), gpu::thread());
        let length = |i: u32| {
            let length = global::load_b32_fresh(p.lengths + i as u64 * 4, i < p.items) as i32;
            (length.max(0) as u32).min(p.distance)
        };
        let (mut before, mut i) = (0, thread);
        while i < item {
            before += length(i);
            i += DETECT_THREADS;
        }
        let (base, count) = (sum(before), length(item));
        let (lane, first) = (thread % 32, gpu::block_y() * WARPS + thread / 32);
        let mut row = first;
        while row < count {
            let source = item * p.distance + row;
            Self::copy_row(p, p.x + source as u64 * p.x_row as u64, base + row, true);
            if lane == 0 {
                Self::say(p, base + row, [base, base + count], source);
            }
            row += WARPS * PACK_PARTS;
        }
        if item + 1 == p.items {
            let all = base + count;
            if thread == 0 && gpu::block_y() == 0 {
                global::store_b32(p.live, all);
            }
            row = all + first;
            while row < all.next_multiple_of(PACK_PAD) {
                Self::copy_row(p, p.x, row, false);
                if lane == 0 {
                    Self::say(p, row, [all, all], 0);
                }
                row += WARPS * PACK_PARTS;
            }
        }
    }
}

/// The sum over the warp, in the same order in every lane.
#[inline(always)]
fn total(x: f32) -> f32 {
    let mut sum = x;
    unroll!(i < 5, {
        sum += f32::from_bits(warp::exchange(sum.to_bits(), 1 << i));
    });
    sum
}

impl NormRows {
    /// Sums, normalises and stores a row; a warp.
    #[inline(always)]
    fn norm<E: Elem<Acc = f32>>(p: &LiveRowsParams, row: u32, affine: &[[[u32; 4]; 4]; 2]) {
        let first = gpu::thread() % 32 * 8;
        let inside = |v: usize| first + 256 * (v as u32) < p.columns;
        let place = |base: u64, v: usize| base + (first + 256 * v as u32) as u64 * 2;
        let (x, y) = (
            p.x + row as u64 * p.x_row as u64,
            p.y + row as u64 * p.y_row as u64,
        );
        let scatter = p.flags & LIVE_ROWS_SCATTER != 0;
        let source = global::load_b32_fresh(p.sources + row as u64 * 4, scatter);
        let mut raw = [[[0; 4]; 4]; 2];
        unroll!(v < 4, {
            raw[0][v] = global::load_v4_fresh(place(x, v), inside(v));
            raw[1][v] = global::load_v4_fresh(place(y, v), inside(v) && p.y != 0);
        });
        let mut values = [[0f32; 8]; 4];
        let mut sum = 0.0;
        unroll!(v < 4, {
            unroll!(i < 8, {
                values[v][i] = E::get(&raw[0][v], i) + E::get(&raw[1][v], i);
                sum += values[v][i];
            });
        });
        let share = matrix::reciprocal(p.columns as f32);
        let mean = total(sum) * share;
        let mut squares = 0.0;
        unroll!(v < 4, {
            unroll!(i < 8, {
                let off = if inside(v) { values[v][i] - mean } else { 0.0 };
                squares = matrix::fma_f32(off, off, squares);
            });
        });
        let by = matrix::inverse_root(total(squares) * share + p.epsilon);
        let to = if scatter { source } else { row };
        let out = p.out + to as u64 * p.out_row as u64;
        unroll!(v < 4, {
            if inside(v) {
                let mut results = [0f32; 8];
                unroll!(i < 8, {
                    let own = (values[v][i] - mean) * by;
                    results[i] =
                        matrix::fma_f32(own, E::get(&affine[0][v], i), E::get(&affine[1][v], i));
                });
                E::store::<8>(place(out, v), &results);
            }
        });
    }
}

impl Body for NormRows {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: Elem<Acc = f32>>(p: &LiveRowsParams, _: u64) {
        grid::let_next_start();
        grid::wait_for_previous();
        let first = gpu::thread() % 32 * 8;
        let inside = |v: usize| first + 256 * (v as u32) < p.columns;
        let place = |base: u64, v: usize| base + (first + 256 * v as u32) as u64 * 2;
        let live = global::load_b32_fresh(p.live, true);
        let mut affine = [[[0; 4]; 4]; 2];
        unroll!(v < 4, {
            affine[0][v] = global::load_v4_fresh(place(p.scale, v), inside(v));
            affine[1][v] = global::load_v4_fresh(place(p.shift, v), inside(v));
        });
        let mut row = gpu::block_x() * WARPS + gpu::thread() / 32;
        while row < live {
            Self::norm::<E>(p, row, &affine);
            row += gpu::grid_x() * WARPS;
        }
    }
}
