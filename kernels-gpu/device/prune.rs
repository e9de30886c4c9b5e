//! A dense matrix to 2:4 by magnitude: of every four neighbours the two largest stay, in the order of their columns. The
//! rule, NaN and ties included, is that of the host's `prune_to_nm`, bit for bit.

use super::elem::Elem;
use super::gpu;
use super::ptx::global;
use crate::abi::*;

/// The body, generic over the element; the tile is the implementor.
pub trait Body: Tile {
    /// # Safety
    /// `p` describes live device memory, and the launch has this tile's geometry.
    unsafe fn run<W: WalkInfo, E: Elem>(p: &PruneParams, at: u64);
}

/// The magnitude of a 16-bit float as a number that grows with it; NaN is above infinity, and quiet, as f64 makes it.
#[inline(always)]
fn magnitude<E: Elem>(bits: u32) -> i32 {
    let (infinity, quiet) = match E::DTYPE {
        Dtype::F16 => (0x7c00, 0x0200),
        _ => (0x7f80, 0x0040),
    };
    let size = bits & 0x7fff;
    (if size > infinity { size | quiet } else { size }) as i32
}

/// The two largest of four elements, of which `inside` are of the matrix, and their positions, 2 bits each. Between
/// equals the lower position; what is outside is below everything.
#[inline(always)]
fn largest<E: Elem>(four: u64, inside: u32) -> (u32, u32) {
    let element = |i: u32| (four >> (16 * i)) as u32 & 0xffff;
    let key = |i: u32| {
        if i < inside {
            magnitude::<E>(element(i))
        } else {
            -1
        }
    };
    let above = |best: u32, i: u32| if key(i) > key(best) { i } else { best };
    let first = above(above(above(0, 1), 2), 3);
    let other = |best: u32, i: u32| if i == first { best } else { above(best, i) };
    let lowest = u32::from(first == 0);
    let second = other(other(other(lowest, 1), 2), 3);
    let (low, high) = (first.min(second), first.max(second));
    (element(low) | element(high) << 16, low | high << 2)
}

/// Eight elements from column `column` of a row that starts at `row`; zeros past the last column.
#[inline(always)]
fn eight<E: Elem>(p: &PruneParams, row: u64, column: u32) -> [u32; 4] {
    let at = row + column as u64 * 2;
    if p.vectors != 0 {
        return global::load_v4(at, column < p.columns);
    }
    let mut words = [0; 4];
    unroll!(i < 4, {
        let i = i as u32;
        let load = |j: u32| global::load_b16(at + j as u64 * 2, column + j < p.columns);
        words[i as usize & 3] = load(2 * i) | load(2 * i + 1) << 16;
    });
    words
}

impl Body for Word32 {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: Elem>(p: &PruneParams, _: u64) {
        let word = gpu::block_x() * Self::THREADS + gpu::thread();
        if word >= p.total {
            return;
        }
        let row = word.checked_div(p.words).unwrap_or(0);
        let first = (word - row * p.words) * 32;
        let from = p.dense + row as u64 * p.leading_bytes as u64;
        let mut meta = 0;
        unroll!(half < 2, {
            let mut kept = [0; 4];
            unroll!(j < 2, {
                let chunk = (half * 2 + j) as u32;
                let column = first + chunk * 8;
                let [a, b, c, d] = eight::<E>(p, from, column);
                let fours = [(a, b, 0), (c, d, 4)];
                unroll!(g < 2, {
                    let (low, high, offset) = fours[g];
                    let inside = p.columns.saturating_sub(column + offset);
                    let (pair, places) = largest::<E>((high as u64) << 32 | low as u64, inside);
                    kept[2 * j + g] = pair;
                    meta |= places << (4 * (chunk * 2 + g as u32));
                });
            });
            global::store_v4(p.values + word as u64 * 32 + half as u64 * 16, kept);
        });
        global::store_b32(p.meta + word as u64 * 4, meta);
    }
}
